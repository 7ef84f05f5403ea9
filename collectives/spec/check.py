"""The proof in every lesson: what a rank got must equal a closed form, element by element."""

# torch is imported where it is used: `import collectives` stays quick, so that a lesson's ranks can start beside its own import.


class Mismatch(AssertionError):
    """A rank did not get what it should have."""


def check(got, expected, call: str, *, rtol: float = 0.0) -> None:
    """Raise `Mismatch` unless `got` equals `expected`: same type, dtype and shape, and every element the same.

    `call` names the call that is being judged, as in "all_reduce(SUM)". `rtol` is a relative tolerance, for values that are rounded
    (a quotient, a root); without it floating-point values must be equal to the last bit. Lists and tuples of tensors are compared
    one by one. The proof is a `raise`, not an `assert`, so that `python -O` proves too.
    """
    if _equal(got, expected, rtol):
        return
    import torch.distributed as dist

    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    raise Mismatch(
        f"rank {rank}/{world_size}: got {_show(got)}, should be {_show(expected)} [{call}{_context(got)}]"
    )


def _equal(got, expected, rtol: float) -> bool:
    import torch

    if isinstance(expected, torch.Tensor):
        if (
            not isinstance(got, torch.Tensor)
            or got.dtype != expected.dtype
            or got.shape != expected.shape
        ):
            return False
        expected = expected.to(got.device)
        return (
            torch.allclose(got, expected, rtol=rtol, atol=0.0)
            if rtol
            else torch.equal(got, expected)
        )
    if isinstance(expected, list | tuple):
        same_length = isinstance(got, list | tuple) and len(got) == len(expected)
        return same_length and all(
            _equal(one, other, rtol) for one, other in zip(got, expected, strict=True)
        )
    return type(got) is type(expected) and got == expected


def _show(value) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_show(one) for one in value) + "]"
    return repr(value)


def _context(got) -> str:
    import torch
    import torch.distributed as dist

    backend = f", {dist.get_backend()}" if dist.is_initialized() else ""
    first = got[0] if isinstance(got, list | tuple) and got else got
    if isinstance(first, torch.Tensor):
        return f", {str(first.dtype).removeprefix('torch.')}{list(first.shape)}{backend}"
    return backend
