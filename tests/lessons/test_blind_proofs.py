"""Of every call in the lessons: with another reduction, root or group, or left out, a step fails.

What no proof can notice is listed here with the reason.
"""

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from lesson_source import Source

from collectives import LaunchError, launch
from collectives.course import chapters, files
from collectives.course.marks import world_of
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

# A variant that makes ranks wait for ever is noticed after so many seconds.
_LIMIT = 5.0


class Variant(NamedTuple):
    """`code` defines the function or class again, with one call changed. `what` says which."""

    function: str
    what: str
    code: str


AS_IT_IS = Variant("", "as it is", "")


def variants(text: str) -> list[Variant]:
    """All variants of a lesson's functions and classes, but those that make their own group."""
    return [
        one
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and "dist.init_process_group(" not in ast.unparse(node)
        for one in _of(node)
    ]


def _of(node: ast.FunctionDef | ast.ClassDef) -> Iterator[Variant]:
    calls = [part for part in ast.walk(node) if _spec(part)]
    for number, call in enumerate(calls):
        for what, other in _others(call, _spec(call)):
            changed = copy.deepcopy(node)
            place = [part for part in ast.walk(changed) if _spec(part)][number]
            vars(place).update(vars(other))
            what = f"{node.name}: {ast.unparse(call)}: {what}"
            yield Variant(node.name, what, ast.unparse(changed))


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
    yield "left out", ast.parse("LeftOut()", mode="eval").body


def _with(call: ast.Call, name: str, value: str) -> ast.Call:
    others = [keyword for keyword in call.keywords if keyword.arg != name]
    changed = ast.keyword(name, ast.parse(value, mode="eval").body)
    return ast.Call(call.func, call.args, [*others, changed])


class LeftOut:
    """Stands for the result of a call that is not made: a finished Work, or a list of none."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True

    def __iter__(self):
        return iter(())


def unnoticed(lesson: str, tried: list[Variant]) -> list[Variant]:
    """The variants with which the steps of the lesson (a name or a path) pass on four ranks.

    Each variant has a world of its own: some leave ranks that wait, or end their processes.
    """
    return [one for one in tried if _passes(lesson, one)]


def _passes(lesson: str, variant: Variant) -> bool:
    options = {"timeout": 100.0 if variant is AS_IT_IS else _LIMIT, "diagnose": False}
    try:
        launch(_run_steps, 4, args=(lesson, variant), backend="gloo", device="cpu", **options)
    except LaunchError:
        return False
    return True


def _run_steps(rank, world_size, device, lesson, variant):
    """Runs in a rank: the step that is changed; all of them if another function is."""
    module = files.load(files.find(lesson))
    vars(module)["LeftOut"] = LeftOut
    exec(variant.code, vars(module))
    steps = [vars(module)[step.__name__] for step in module.STEPS if not world_of(step).isolated]
    changed = [step for step in steps if step.__name__ == variant.function]
    for step in changed or steps:
        step(rank, world_size, device)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name != "gather" else ()) for name in NAMES],
)
def test_another_call_is_noticed(name):
    as_it_is, *blind = unnoticed(name, [AS_IT_IS, *variants(Source(name).text)])
    assert as_it_is == AS_IT_IS
    assert [one.what for one in blind if one.what not in LISTED] == []


def test_what_is_listed_is_tried():
    assert LISTED.keys() <= {one.what for name in NAMES for one in variants(Source(name).text)}


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


def test_a_blind_proof_is_found(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    tried = variants(PROGRAM)
    reduction = "dist.all_reduce(x, op=dist.ReduceOp.MAX)"
    assert [one.what for one in unnoticed(str(path), tried)] == [
        f"blind: {reduction}: MIN for MAX",
        f"blind: {reduction}: left out",
        "blind: dist.broadcast(x, src=0): another root",
        "blind: dist.broadcast(x, src=0): left out",
    ]
    good = "good: dist.all_reduce(x, async_op=True)"
    assert [one.what for one in tried][4:] == [f"{good}: MAX for SUM", f"{good}: left out"]
