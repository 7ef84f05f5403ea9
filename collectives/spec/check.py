"""The proof in every lesson: what a rank got must equal a closed form, element by element."""

# torch is imported where it is used. So `import collectives` is quick, and a lesson's ranks start
# while the lesson imports torch.


class Mismatch(AssertionError):
    """A rank did not get what it should have."""


def check(got, expected, call: str, *, rtol: float = 0.0) -> None:
    """Raise `Mismatch` unless `got` equals `expected` in type, dtype, shape and every element.

    `call` names the call that is checked, as in "all_reduce(SUM)". `rtol` is a relative tolerance
    for values that are rounded (a quotient, a root); without it floating-point values must be equal
    to the last bit. The tensors of lists and tuples are compared in pairs.
    """
    # A `raise`, not an `assert`: `python -O` proves too.
    if _equal(got, expected, rtol):
        return
    import torch.distributed as dist

    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    values = f"got {_show(got)}, should be {_show(expected)}"
    raise Mismatch(f"rank {rank}/{world_size}: {values} [{call}{_context(got)}]")


def _equal(got, expected, rtol: float) -> bool:
    import torch

    if isinstance(expected, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            return False
        if (got.dtype, got.shape) != (expected.dtype, expected.shape):
            return False
        expected = expected.to(got.device)
        if rtol:
            return torch.allclose(got, expected, rtol=rtol, atol=0.0)
        return torch.equal(got, expected)
    if isinstance(expected, list | tuple):
        if not isinstance(got, list | tuple) or len(got) != len(expected):
            return False
        return all(_equal(a, b, rtol) for a, b in zip(got, expected, strict=True))
    return type(got) is type(expected) and got == expected


def _show(value) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_show, value)) + "]"
    return repr(value)


def _context(got) -> str:
    """The dtype, shape and backend, for the message."""
    import torch
    import torch.distributed as dist

    backend = f", {dist.get_backend()}" if dist.is_initialized() else ""
    first = got[0] if isinstance(got, list | tuple) and got else got
    if isinstance(first, torch.Tensor):
        return f", {str(first.dtype).removeprefix('torch.')}{list(first.shape)}{backend}"
    return backend
