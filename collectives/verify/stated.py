"""What is told: equal bits, and calls that do not match, which are judged by claims alone."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.backends import claims
from collectives.backends.claims import Claim
from collectives.semantics.cell import Cell
from collectives.semantics.probe import first_line
from collectives.verify.question import FAULTS, STATED, Answer, Question, Stated

_LIMIT = timedelta(seconds=2)
_PATIENCE = timedelta(seconds=6)

# What two ranks do that do not agree, by what they disagree about.
_Calls = dict[str, tuple[str, Callable[[int, Any], Any]]]
MISMATCHES: _Calls = {
    "other_length": (
        "all_reduce",
        lambda rank, group: dist.all_reduce(torch.ones(5 + 3 * rank), group=group),
    ),
    "other_dtype": (
        "all_reduce",
        lambda rank, group: dist.all_reduce(
            torch.ones(6, dtype=(torch.float32, torch.int64)[rank]), group=group
        ),
    ),
    "other_reduction": (
        "all_reduce",
        lambda rank, group: dist.all_reduce(
            torch.ones(5), (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[rank], group=group
        ),
    ),
    "other_root": (
        "broadcast",
        lambda rank, group: dist.broadcast(torch.full((5,), 1.0 + rank), rank, group=group),
    ),
    "other_call": (
        "all_reduce",
        lambda rank, group: (
            dist.all_reduce(torch.ones(5), group=group)
            if rank
            else dist.broadcast(torch.ones(5), 0, group=group)
        ),
    ),
}


def questions(backend: str, device: str) -> Iterator[Question]:
    for name in ("all_reduce", "reduce", "reduce_scatter_single"):
        run = functools.partial(bits_again, name=name)
        yield Question("stated", name, "the same sum again, and with ranks exchanged", 4, run)
    for what, (name, _) in MISMATCHES.items():
        run = functools.partial(mismatched, what=what)
        cell = Cell(name, f"{name}:{what}", backend, device, "float32", "SUM", 2)
        case = f"{what.replace('_', ' ')} on rank 1"
        yield Question("stated", name, case, 2, run, (("variant", what),), program=cell)


def bits_again(rank: int, size: int, device: torch.device, name: str) -> Stated:
    random = torch.Generator().manual_seed(3)
    terms = torch.randn(size, 65_536, generator=random).to(device)
    first = _summed(name, terms[rank].clone(), size)
    again = [_summed(name, terms[rank].clone(), size) for _ in range(5)]
    turned = _summed(name, terms.roll(1, 0)[rank].clone(), size)
    texts = [
        f"{what}: {'equal bits' if all(torch.equal(one, first) for one in some) else 'other bits'}"
        for what, some in (("again", again), ("with ranks exchanged", [turned]))
    ]
    return Stated(", ".join(texts))


def _summed(name: str, own: torch.Tensor, size: int) -> torch.Tensor:
    if name == "all_reduce":
        dist.all_reduce(own)
    elif name == "reduce":
        dist.reduce(own, 0)
        dist.broadcast(own, 0)
    else:
        output = own.new_zeros(len(own) // size)
        dist.reduce_scatter_tensor(output, own)
        return output
    return own


def mismatched(rank: int, size: int, device: torch.device, what: str) -> Stated:
    """What each rank says, in one text. A process that dies says nothing: its world does."""
    group = dist.new_group(list(range(size)), timeout=_LIMIT)
    store = c10d._get_default_store()
    try:
        MISMATCHES[what][1](rank, group)
        text = "returned"
    except Exception as error:
        text = f"raised {first_line(error)}"
    store.set(f"mismatched/{rank}", text)
    try:
        store.wait([f"mismatched/{other}" for other in range(size)], _PATIENCE)
        texts = [store.get(f"mismatched/{other}").decode() for other in range(size)]
    except RuntimeError:
        return Stated(f"rank {rank} {text}; another rank hung")
    return Stated("; ".join(f"rank {other} {text}" for other, text in enumerate(texts)))


def load(file: Path | None) -> tuple[Claim, ...]:
    """A backend's own claims of calls that do not match. ValueError if the file has none."""
    if file is None:
        return ()
    forms = [f"{name}:{what}" for what, (name, _) in MISMATCHES.items()]
    found = [claim for claim in claims.load(file) if {*claim.form} & {*forms}]
    if not found:
        raise ValueError(f"{file} claims nothing of calls that do not match: {', '.join(forms)}.")
    return tuple(found)


def judged(answer: Answer, known: tuple[Claim, ...]) -> Answer:
    """The answer as it is, unless a claim names such a call: then it has to do what is claimed."""
    cell = answer.question.program
    own = [claim for claim in known if isinstance(cell, Cell) and cell.form in claim.form]
    claim = claims.expected(cell, torch.__version__, tuple(own)) if own else None
    if claim is None or answer.state != STATED:
        return answer
    state = _state(answer.detail)
    if state == claim.state:
        return replace(answer, state="works")
    text = f"it is claimed that this {claim.state}: {claim.reason}. What came: {answer.detail}"
    return replace(answer, state=state if state in FAULTS else "wrong", detail=text)


def _state(detail: str) -> str:
    """What came of calls that do not match: if no rank raised, they were taken as if they did."""
    kind = detail.partition(":")[0]
    if kind in ("hangs", "crashes"):
        return kind
    if "another rank hung" in detail:
        return "hangs"
    return "refuses" if "raised" in detail else "wrong"
