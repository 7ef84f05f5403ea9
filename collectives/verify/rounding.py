"""How exact sums of floats are, where no order of adding is exact.

Whatever the order, adding n numbers one after the other in their own dtype is off by at most n - 1
eps times the sum of their absolute values. What is off by more has been computed in less.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.semantics.cell import Cell
from collectives.semantics.check import Mismatch
from collectives.semantics.probe import judged
from collectives.verify.question import Question, Stated

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_CALLS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single")
_ELEMENTS = 4096


def questions(backend: str, device: str, world_sizes: tuple[int, ...]) -> Iterator[Question]:
    for size in world_sizes:
        for op in ("MIN", "MAX"):
            for dtype in _DTYPES:
                word = str(dtype).removeprefix("torch.")
                run: Any = functools.partial(nan_in, op=op, dtype=dtype)
                traits = (("dtype", word), ("op", op), ("data", "special"))
                case = f"{op}, {word}, nan and a number"
                cell = Cell("all_reduce", "all_reduce", backend, device, word, op, size)
                yield Question(
                    "widths", "all_reduce", case, size, run, traits, program=("nan", cell)
                )
        for name in _CALLS:
            for dtype in _DTYPES:
                for scale in ("ones", "limit"):
                    word = str(dtype).removeprefix("torch.")
                    what = "random numbers" if scale == "ones" else f"the largest {word}"
                    run = functools.partial(rounded, name=name, dtype=dtype, scale=scale)
                    traits = (("dtype", word), ("op", "SUM"), ("data", "rounded"))
                    case = f"SUM, {word}, {what}"
                    cell = Cell(name, f"{name}:{scale}", backend, device, word, "SUM", size)
                    program = "rounded", cell
                    yield Question("widths", name, case, size, run, traits, program=program)


def nan_in(rank: int, size: int, device: torch.device, op: str, dtype: torch.dtype) -> Stated | str:
    """Which of a NaN and a number wins is told; that all ranks hold the same is judged."""
    pairs = torch.ones(size, 2, dtype=dtype, device=device)
    pairs[0, 0] = pairs[size - 1, 1] = float("nan")
    own = pairs[rank].clone()
    with judged(rank, size) as verdict:
        dist.all_reduce(own, getattr(dist.ReduceOp, op))
        first, second = own.tolist()
        text = f"{op}(nan, 1) is {first:g}, {op}(1, nan) is {second:g}"
        store, key = c10d._get_default_store(), f"nan/{op}/{dtype}"
        store.set(f"{key}/{rank}", text)
        texts = [store.get(f"{key}/{other}").decode() for other in range(size)]
        for other, theirs in enumerate(texts):
            if theirs != texts[0]:
                raise Mismatch(f"on rank 0 {texts[0]}; on rank {other} {theirs}")
        return Stated(text)
    return verdict.wrong or ""


def rounded(
    rank: int, size: int, device: torch.device, name: str, dtype: torch.dtype, scale: str
) -> Stated | str | None:
    word = str(dtype).removeprefix("torch.")
    random = torch.Generator().manual_seed(7)
    factor = 1.0 if scale == "ones" else torch.finfo(dtype).max / (2 * size)
    numbers = torch.rand(size, _ELEMENTS, generator=random, dtype=torch.float64) * 2 - 1
    terms = (numbers * factor).to(dtype)
    exact, most = terms.double().sum(0), terms.double().abs().sum(0)
    with judged(rank, size) as verdict:
        got, part = _reduce(name, terms[rank].to(device), rank, size)
        if got is None:
            return Stated("") if name == "reduce" else None
        exact, most = exact[part], most[part]
        error = (got.cpu().double() - exact).abs()
        bound = (size - 1) * torch.finfo(dtype).eps * most
        worst = int((error - bound).nan_to_num(torch.inf).argmax())
        if not error[worst] <= bound[worst]:
            raise Mismatch(
                f"element {worst} is {got[worst].item():g}, the exact sum is "
                f"{exact[worst].item():g}: that is {(error / bound)[worst].item():.3g} times "
                f"as far off as {size} {word} may be"
            )
        once = (got.cpu() == exact.to(dtype)).double().mean().item()
        share = (error / bound).nan_to_num(0).max().item()
        return Stated(
            f"{word}: off by at most {share:.1f} of (n - 1) eps sum|x|; {round(once, 1):.0%} of "
            "the elements are as if rounded once"
        )
    return verdict.wrong


def _reduce(
    name: str, own: torch.Tensor, rank: int, size: int
) -> tuple[torch.Tensor | None, slice]:
    """The sum, and of which elements it is."""
    whole = slice(0, len(own))
    if name == "all_reduce":
        dist.all_reduce(own)
        return own, whole
    if name == "reduce":
        dist.reduce(own, 0)
        return (own if rank == 0 else None), whole
    length = len(own) // size
    output, part = own.new_zeros(length), slice(rank * length, (rank + 1) * length)
    if name == "reduce_scatter":
        dist.reduce_scatter(output, list(own[: size * length].split(length)))
    else:
        dist.reduce_scatter_tensor(output, own[: size * length])
    return output, part
