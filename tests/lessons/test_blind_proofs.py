"""Of every call in the lessons: with another reduction, root or group, or left out, a step fails.

What no proof can notice is listed here with the reason.
"""

import ast
import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from planted import Planted, by_any_error
from shared_world import Try, in_turn

from collectives.course import chapters, files
from collectives.semantics.calls import CALLS, CallSpec, Flow

NAMES = [name for chapter in ("start", "calls") for name in chapters.read()[chapter].names]

SUM_ON_RANK_0 = "gloo leaves the whole sum on rank 0, whatever the root is"
RACE = "without the barrier the ranks race, and may win"
RETURNS = "it is shown that the call returns"
LISTED = {
    "no_shared_memory: dist.barrier(): left out": RACE,
    "what_is_left: dist.reduce(x, dst=0): another root": SUM_ON_RANK_0,
    "speed_of_the_job: dist.reduce(tokens, dst=0, op=dist.ReduceOp.SUM): another root": (
        SUM_ON_RANK_0
    ),
    "speed_of_the_job: dist.reduce(seconds, dst=0, op=dist.ReduceOp.MAX): another root": (
        SUM_ON_RANK_0
    ),
    "barrier_and_a_file: dist.barrier(): left out": RACE,
    "barrier_of_a_group: dist.barrier(group=group): left out": RETURNS,
    "monitored_barrier: dist.monitored_barrier(group=group): left out": RETURNS,
    "monitored_barrier: dist.monitored_barrier(group=group): no group": (
        "this group has all ranks, as the world has"
    ),
    "one_bucket: dist.broadcast(length, src=trainer, group=group): left out": (
        "every rank has the same length: the call guards against ranks that have not"
    ),
}


_SPECS = {name: spec for spec in CALLS.values() for name in spec.names if spec.flow != Flow.GROUP}
_OTHER_REDUCTION = {"MAX": "MIN", "SUM": "MAX"}

_LEFT_OUT = "__import__('wrong_collectives').LeftOut()"


def variants(file: Path) -> dict[str, Planted]:
    """By what is other: all variants of the functions and classes of a lesson.

    Those that make their own group are left out.
    """
    text = file.read_text("utf-8")
    return {
        what: Planted(file, ast.get_source_segment(text, node), changed, function=node.name)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and "dist.init_process_group(" not in ast.unparse(node)
        for what, changed in _of(node)
    }


def _of(node: ast.FunctionDef | ast.ClassDef) -> Iterator[tuple[str, str]]:
    calls = [part for part in ast.walk(node) if _spec(part)]
    for number, call in enumerate(calls):
        for what, other in _others(call, _spec(call)):
            changed = copy.deepcopy(node)
            place = [part for part in ast.walk(changed) if _spec(part)][number]
            vars(place).update(vars(other))
            changed.decorator_list = []  # they stay where they are, above
            yield f"{node.name}: {ast.unparse(call)}: {what}", ast.unparse(changed)


def _spec(node: ast.AST) -> CallSpec | None:
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("dist."):
        return _SPECS.get(node.func.attr)
    return None


def _others(call: ast.Call, spec: CallSpec) -> Iterator[tuple[str, ast.Call]]:
    """What else could stand there, and what is other about it."""
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if spec.reduces:
        op = given.get("op", "SUM").rpartition(".")[2]
        other = _OTHER_REDUCTION.get(op, "SUM")
        yield f"{other} for {op}", _with(call, "op", f"dist.ReduceOp.{other}")
    if spec.flow in (Flow.FROM_ROOT, Flow.TO_ROOT):
        for name in {spec.peer, f"group_{spec.peer}"} & given.keys():
            root = f"({given[name]} + 1) % dist.get_world_size()"
            yield "another root", _with(call, name, root)
    if "group" in given:
        yield "no group", _with(call, "group", "None")
    yield "left out", ast.parse(_LEFT_OUT, mode="eval").body


def _with(call: ast.Call, name: str, value: str) -> ast.Call:
    others = [keyword for keyword in call.keywords if keyword.arg != name]
    changed = ast.keyword(name, ast.parse(value, mode="eval").body)
    return ast.Call(call.func, call.args, [*others, changed])


def blind(tried: dict[str, Planted], folder: Path, limit: float) -> list[str]:
    """The variants with which the steps of the lesson pass on four ranks.

    One that makes ranks wait for ever is noticed after `limit` seconds.
    """
    told = in_turn([Try(partial(errors, fault), limit) for fault in tried.values()], 4, folder)
    return [what for what, by_rank in zip(tried, told, strict=True) if by_rank == ("",) * 4]


def errors(fault: Planted, rank: int, n: int) -> tuple[bool, str]:
    """Runs in a rank."""
    try:
        for step in fault.steps(fault.module()):
            step(rank, n, torch.device("cpu"))
    except Exception as error:
        return True, repr(error)
    return False, ""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.weekly if name != "gather" else ()) for name in NAMES],
)
def test_another_call_is_noticed(name, tmp_path):
    file = files.find(name)
    as_it_is = Planted(file, "STEPS = [", "STEPS = [")
    assert by_any_error([as_it_is], timeout=100.0) == [""]
    assert [what for what in blind(variants(file), tmp_path, 2.0) if what not in LISTED] == []


def test_what_is_listed_is_tried():
    assert LISTED.keys() <= {what for name in NAMES for what in variants(files.find(name))}


PROGRAM = """
import torch
import torch.distributed as dist
from collectives import check

def blind(rank, world_size, device):
    x = torch.tensor([7], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    check(x, torch.tensor([7]), "all_reduce(MAX)")
    dist.broadcast(x, src=0)
    check(x, torch.tensor([7]), "broadcast")

def good(rank, world_size, device):
    x = torch.tensor([rank], device=device)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    check(x, torch.tensor([world_size * (world_size - 1) // 2]), "all_reduce(SUM)")

STEPS = [blind, good]
"""


def test_a_blind_proof_is_found(tmp_path, tmp_path_factory):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    tried = variants(path)
    reduction = "dist.all_reduce(x, op=dist.ReduceOp.MAX)"
    assert blind(tried, tmp_path_factory.mktemp("notes"), 30.0) == [
        f"blind: {reduction}: MIN for MAX",
        f"blind: {reduction}: left out",
        "blind: dist.broadcast(x, src=0): another root",
        "blind: dist.broadcast(x, src=0): left out",
    ]
    good = "good: dist.all_reduce(x, async_op=True)"
    assert list(tried)[4:] == [f"{good}: MAX for SUM", f"{good}: left out"]
