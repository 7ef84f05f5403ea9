"""The proof that work is divided: of each batch, every sample is computed on one rank.

A mean of equal gradients is right, too. So parameters cannot tell a training that is shared from
one in which every rank computes the whole batch; the samples that reach the model can.
"""

import hashlib
import math
from collections import Counter
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from collectives.semantics.check import Mismatch
from collectives.semantics.check_training import Trained

Steps = list[list[bytes]]  # for each step of the optimizer, a digest of each sample

# The last list of a model is that of the step which has not ended yet.
_recorded: WeakKeyDictionary[Any, Steps] = WeakKeyDictionary()


def note_samples(model: Any, optimizer: Any) -> None:
    """From now on, note which samples the model computes in each step of the optimizer.

    A sample is a row of the model's first argument. `check_samples` compares what was noted.

    >>> model = torch.nn.Linear(1, 1)
    >>> note_samples(model, torch.optim.SGD(model.parameters()))
    """
    _recorded[model] = [[]]
    model.register_forward_pre_hook(partial(_note, _recorded[model]))
    optimizer.register_step_post_hook(partial(_end_step, _recorded[model]))


def check_samples(
    got: Trained, expected: Trained, call: str, *, replica: int | None = None
) -> None:
    """Raise `Mismatch` unless the ranks share the samples of each step evenly, each computed once.

    `got` and `expected` are pairs of a model and its optimizer, and `note_samples` was called for
    both before their training. `expected` was trained in this process alone, with whole batches.
    Samples are told by their content. Ranks that share one replica of the model compute the same
    samples; they say its number in `replica`. Without it each rank is a replica of its own. A rank
    that gets the result of another one, as in a pipeline, computes no samples.
    It is a collective: all ranks compare together, and all raise the same error, which names a rank
    and how many samples it has computed.

    >>> def trained(batches):
    ...     model = torch.nn.Linear(1, 1)
    ...     optimizer = torch.optim.SGD(model.parameters())
    ...     note_samples(model, optimizer)
    ...     for batch in batches:
    ...         model(batch).sum().backward()
    ...         optimizer.step()
    ...     return model, optimizer
    >>> def step(rank, world_size, device):
    ...     batch = torch.arange(4.0).reshape(4, 1)
    ...     check_samples(trained([batch[rank::world_size]]), trained([batch]), "shards")
    ...     return "shared"
    >>> launch(step, 2)
    ['shared', 'shared']
    """
    import torch.distributed as dist

    if missing := [model for model, _ in (got, expected) if model not in _recorded]:
        raise ValueError(f"note_samples was not called for this model: {missing[0]}")
    mine, batches = (_recorded[model][:-1] for model, _ in (got, expected))
    ranks: list[Any] = [(replica, mine)]
    if dist.is_initialized():
        ranks = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, (dist.get_rank() if replica is None else replica, mine))
    for rank, (_, steps) in enumerate(ranks):
        if len(steps) != len(batches):
            difference = f"computed {len(steps)} steps, should be {len(batches)}"
            raise Mismatch(difference, call, rank, len(ranks))
    for step, batch in enumerate(batches):
        computed = [(replica, steps[step]) for replica, steps in ranks]
        if mismatch := _difference(computed, batch):
            rank, difference = mismatch
            raise Mismatch(f"step {step + 1}: {difference}", call, rank, len(ranks))


def _difference(ranks: list[tuple[int, list[bytes]]], batch: list[bytes]) -> tuple[int, str] | None:
    """A rank that computes wrong samples in a step, and what is wrong."""
    shares: dict[int, list[bytes]] = {}  # of each replica
    for rank, (replica, samples) in enumerate(ranks):
        shares[replica] = shares.get(replica) or samples
        if samples and sorted(samples) != sorted(shares[replica]):
            return rank, f"its {len(samples)} samples are not those of its replica"
    most, left = math.ceil(len(batch) / len(shares)), Counter(batch)
    for rank, (replica, samples) in enumerate(ranks):
        if len(samples) > most:
            return rank, f"computed {len(samples)} samples of {len(batch)}, its share is {most}"
        mine = Counter(shares.pop(replica, []))
        if wrong := (mine - left).total():
            words = "are computed by another rank, too, or not in the batch"
            return rank, f"{wrong} of its {len(samples)} samples {words}"
        left -= mine
    if left:
        fewest = min(range(len(ranks)), key=lambda rank: len(ranks[rank][1]))
        return fewest, f"{left.total()} samples of {len(batch)} are computed by no rank"
    return None


def _note(steps: Steps, model: Any, arguments: tuple[Any, ...]) -> None:
    import torch

    samples = arguments[0]
    # What wants a gradient is the result of another rank, and without gradients nothing is trained.
    if torch.is_grad_enabled() and not samples.requires_grad:
        rows = samples.detach().double().cpu().flatten(1)  # the same sample in every dtype
        steps[-1] += [hashlib.sha256(row.numpy().tobytes()).digest()[:8] for row in rows]


def _end_step(steps: Steps, *_: Any) -> None:
    steps.append([])
