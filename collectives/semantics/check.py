"""The proof in every lesson: what a rank got must equal a closed form, element by element."""

from typing import TYPE_CHECKING, Any

# torch is imported where it is used. So `import collectives` is quick, and a lesson's ranks start
# while the lesson imports torch.
if TYPE_CHECKING:
    import torch

# So many characters of a long value are shown.
_SHOWN = 200


class Mismatch(AssertionError):
    """A rank did not get what it should have.

    `difference` says so without the rank and the call that were checked, which the message names.

    >>> Mismatch("element 1 is 1.0, expected 3.0", "all_reduce(SUM)", rank=1, world_size=2)
    Mismatch('rank 1/2: element 1 is 1.0, expected 3.0 [all_reduce(SUM)]')
    """

    def __init__(self, difference: str, call: str = "", rank: int = 0, world_size: int = 1):
        where = f"rank {rank}/{world_size}: {difference} [{call}]"
        super().__init__(where if call else difference)
        self.difference = difference


def check(got: Any, expected: Any, call: str, *, rtol: float = 0.0) -> None:
    """Raise `Mismatch` unless `got` equals `expected` in type, dtype, shape and every element.

    `call` names the call that is checked, as in "all_reduce(SUM)". `rtol` is a relative tolerance
    for values that are rounded (a quotient, a root); without it floating-point values must be equal
    to the last bit: -0.0 is not 0.0. The tensors of lists and tuples are compared in pairs.

    >>> check(torch.tensor([3.0, 3.0]), torch.full([2], 3.0), "all_reduce(SUM)")
    >>> check(torch.tensor([1]), torch.tensor([3]), "reduce(SUM)")
    Traceback (most recent call last):
        ...
    collectives.semantics.check.Mismatch: rank 0/1: got [1], should be [3] [reduce(SUM), int64[1]]
    """
    # A `raise`, not an `assert`: `python -O` proves too.
    if equal(got, expected, rtol):
        return
    import torch.distributed as dist

    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    shown, wanted = _from_the_difference(_show(got), _show(expected))
    raise Mismatch(f"got {shown}, should be {wanted}", f"{call}{_context(got)}", rank, world_size)


def equal(got: Any, expected: Any, rtol: float) -> bool:
    """Whether both are the same in type, dtype, shape and every element."""
    import torch

    if isinstance(expected, torch.Tensor):
        if not isinstance(got, torch.Tensor) or kind(got) != kind(expected):
            return False
        if rtol:
            return torch.allclose(got, expected.to(got.device), rtol=rtol, atol=0.0)
        return torch.equal(bits(got), bits(expected))
    if isinstance(expected, list | tuple):
        if not isinstance(got, list | tuple) or len(got) != len(expected):
            return False
        return all(equal(a, b, rtol) for a, b in zip(got, expected, strict=True))
    return type(got) is type(expected) and got == expected


def bits(tensor: "torch.Tensor") -> "torch.Tensor":
    """The bytes of a tensor. They tell -0.0 from 0.0, and a NaN is equal to itself."""
    import torch

    values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # subtle: to `contiguous()` a tensor of one element is contiguous whatever its stride, and only
    # a stride of 1 can be seen as bytes. A copy would make each bool 0 or 1.
    return values.as_strided((values.numel(),), (1,)).view(torch.uint8)


def _show(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_show, value)) + "]"
    return repr(value)


def _from_the_difference(got: str, expected: str) -> list[str]:
    """Of long texts only what begins shortly before they differ."""
    pairs = enumerate(zip(got, expected, strict=False))
    start = max(0, next((place for place, (a, b) in pairs if a != b), 0) - 20)
    return [
        text if len(text) <= 2 * _SHOWN else f"... {text[start : start + _SHOWN]} ..."
        for text in (got, expected)
    ]


def _context(got: Any) -> str:
    """The dtype, shape and backend, for the message."""
    import torch
    import torch.distributed as dist

    backend = f", {dist.get_backend()}" if dist.is_initialized() else ""
    first = got[0] if isinstance(got, list | tuple) and got else got
    if isinstance(first, torch.Tensor):
        return f", {kind(first)}{backend}"
    return backend


def kind(tensor: "torch.Tensor") -> str:
    """As in "float32[3, 4]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
