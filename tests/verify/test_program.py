"""The programs of a certificate hold where the backend is right, and fail where it is wrong."""

import os
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from collectives import launch
from collectives.backends import claims
from collectives.semantics.cell import Cell
from collectives.verify import program
from collectives.verify.plan import Plan

SECTIONS = ("calls", "sizes", "widths", "groups", "at once")


def outcomes(rank, world_size, device, programs) -> list[str]:
    """Runs in a rank, which has its group: the error of each program that has one."""
    os.environ["RANK"] = str(rank)
    found = []
    for name, text in programs:
        with mock.patch.object(dist, "init_process_group"):
            try:
                exec(compile(text, name, "exec"), {})
            except Exception as error:
                found.append(f"{name}: {type(error).__name__}: {error}")
    return found


def gloo_can(question) -> bool:
    """What it refuses or does wrong, by its claims, and what ends the world, is left out."""
    given = question.program
    kind, cell = ("", given) if isinstance(given, Cell) else given
    if "another group" in kind or (kind.startswith("no Work") and "reduce_sc" in cell.name):
        return False
    form = cell.name if cell.variant in ("offset", "ones", "limit") else cell.form
    same = Cell(cell.collective, form, "gloo", "cpu", cell.dtype, cell.op, cell.world_size)
    claim = claims.expected(same, torch.__version__)
    return bool(claim) and claim.state == "works"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_on_gloo_every_program_holds(ranks):
    programs = {}
    for question in Plan("gloo", world_sizes=(ranks,)).questions():
        text = program.of(question, ())
        if question.section in SECTIONS and question.ranks == ranks and text:
            is_short = "4_194_305" not in text and "range(1000)" not in text
            is_few = question.section != "widths" or "float" in question.case
            if gloo_can(question) and is_short and is_few:
                programs.setdefault(
                    text.replace("0.5", "0.1").replace("0.4", "0.05"), str(question)
                )
    assert len(programs) > 200
    named = [(name, text) for text, name in programs.items()]
    found = launch(outcomes, ranks, args=(named,), backend="gloo", timeout=300.0)
    assert [*map(list, found)] == [[]] * ranks


def spoiled(rank, world_size, device, programs) -> list[str]:
    """The same with calls that write nothing."""
    nothing = mock.Mock(
        **{"wait.return_value": True, "is_completed.side_effect": [False, True] * 9}
    )
    calls = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "all_to_all")
    calls += (
        "reduce_scatter",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "all_to_all_single",
    )
    for name in (*calls, "irecv", "isend", "send"):
        setattr(dist, name, lambda *_, **__: nothing)
    dist.recv = lambda *_, **__: 0
    dist.batch_isend_irecv = lambda _: [nothing]
    return outcomes(rank, world_size, device, programs)


def test_programs_fail_where_calls_write_nothing():
    programs = {}
    for question in Plan("gloo", world_sizes=(2,), quick=True).questions():
        text = program.of(question, ())
        says_something = "float32" in text and "arange(0)" not in text
        if question.section in ("calls", "sizes") and says_something and gloo_can(question):
            programs.setdefault(text, str(question))
    named = [(name, text) for text, name in programs.items() if "per-node 2 " in text]
    assert len(named) > 60
    found = launch(spoiled, 2, args=(named,), backend="gloo")
    failed = {line.partition(": ")[0] for lines in found for line in lines}
    assert {name for name, _ in named} - failed == set()
