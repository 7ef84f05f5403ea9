"""The proof in the lessons on training: every rank holds the model that one process trains.

torch is imported where it is used, as in check.py.
"""

import hashlib
import math
from typing import TYPE_CHECKING, Any

from collectives.semantics.check import Mismatch, kind

if TYPE_CHECKING:
    import torch

Trained = tuple[Any, Any]  # a model and its optimizer
State = dict[str, "torch.Tensor"]

# In float64, after at most 50 optimizer steps, right programs stay below 1e-12, and wrong ones come
# to 1e-4 and more.
LIMIT = 1e-9


def check_training(
    got: Trained, expected: Trained, call: str, *, limit: float = LIMIT, same_bits: bool = True
) -> None:
    """Raise `Mismatch` unless every rank holds what one process trains, and all hold the same bits.

    `got` and `expected` are pairs of a model and its optimizer. `expected` was trained in this
    process alone. Parameters, buffers and the state of the optimizer may differ by the relative
    error `limit` in each tensor, and not by a bit if it is 0.0; among the ranks they must be equal
    to the last bit, unless `same_bits` is False, because each rank trains a model of its own.
    `call` names what is checked.
    It is a collective: all ranks compare together, and all raise the same error, which names
    the worst tensor and its rank.

    >>> def trained(batches):
    ...     torch.manual_seed(0)
    ...     model = torch.nn.Linear(2, 1)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     for batch in batches:
    ...         model(batch).sum().backward()
    ...         optimizer.step()
    ...     return model, optimizer
    >>> def step(rank, world_size, device):
    ...     data = [torch.ones(4, 2)] * 3
    ...     check_training(trained(data), trained(data), "three steps")
    ...     return "equal"
    >>> launch(step, 2)
    ['equal', 'equal']
    """
    import torch.distributed as dist

    mine = (relative_errors(got, expected), _digests(_state(*got)))
    if limit == 0.0:  # -0.0 is equal to 0.0, but has another bit
        right = _digests(_state(*expected))
        for name, digest in mine[1].items():
            if digest != right.get(name):
                mine[0][name] = mine[0][name] or math.inf
    ranks: list[Any] = [mine]
    if dist.is_initialized():
        ranks = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, mine)
    error, rank, name = max(
        (error, -rank, name)
        for rank, (errors, _) in enumerate(ranks)
        for name, error in errors.items()
    )
    if error > limit:
        difference = f"{name}: relative error {error:.1g}, should be at most {limit:.0e}"
        raise Mismatch(difference, call, -rank, len(ranks))
    for rank, (_, digests) in enumerate(ranks):
        for name, digest in digests.items():
            if same_bits and digest != ranks[0][1][name]:
                difference = f"{name}: differs from rank 0's, should be equal to the last bit"
                raise Mismatch(difference, call, rank, len(ranks))


def relative_errors(got: Trained, expected: Trained) -> dict[str, float]:
    """For each tensor of a model and its optimizer: |got - expected| / |expected|.

    Infinite where a tensor is missing, has another shape or dtype, or is not finite.
    """
    mine, right = _state(*got), _state(*expected)
    return {
        name: _relative_error(mine.get(name), right.get(name))
        for name in sorted(mine.keys() | right.keys())
    }


def _state(model: Any, optimizer: Any) -> State:
    """All tensors by name: "0.weight", "0.weight.momentum_buffer". DDP's "module." is left out."""
    import torch

    found = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:  # an SGD without momentum notes that it has none
                found[f"{name}.{key}"] = torch.as_tensor(value)
    return {name.removeprefix("module."): tensor.detach() for name, tensor in found.items()}


def _relative_error(got: "torch.Tensor | None", expected: "torch.Tensor | None") -> float:
    if got is None or expected is None or kind(got) != kind(expected):
        return math.inf
    difference = (got.double() - expected.double()).norm().item()
    # Also asked where nothing differs: a step's record counts it, and processors round differently.
    norm = expected.double().norm().item()
    if difference == 0:
        return 0.0
    error = difference / norm if norm else math.inf
    return error if math.isfinite(error) else math.inf


def _digests(state: State) -> dict[str, str]:
    import torch

    data = {name: tensor.cpu().reshape(-1).view(torch.uint8) for name, tensor in state.items()}
    return {name: hashlib.sha256(one.numpy().tobytes()).hexdigest() for name, one in data.items()}
