"""Each lesson on a call shows its signature as this torch has it, and explains each argument."""

import ast
import inspect
import re

import pytest
import torch
import torch.distributed as dist
from lesson_source import Source

from collectives.backends import claims
from collectives.course import chapters

# weight_update teaches no call of its own.
LESSONS = [name for name in chapters.read()["calls"].names if name != "weight_update"]
CALLS = "all_reduce broadcast all_gather reduce_scatter reduce gather scatter all_to_all barrier new_group"
CALLS = {*CALLS.split(), "send", "recv", "isend", "irecv"}
BLOCK = re.compile(r"^```python\n((?:dist\.[^`]*?\)\n)+)```\n\n((?:\|.*\n?)+)", re.MULTILINE)
SHOWN = [
    (name, line, table)
    for name in LESSONS
    for block, table in BLOCK.findall(Source(name).prose)
    for line in re.split(r"\n(?=dist)", block.strip())
]


def of_torch(call: str) -> list[tuple[str, str]]:
    """Each parameter with its default: a reduction by its name, and nothing for none."""
    parameters = inspect.signature(getattr(dist, call)).parameters.values()
    return [
        (
            one.name,
            "" if one.default is one.empty else getattr(one.default, "name", str(one.default)),
        )
        for one in parameters
    ]


def newer(table: str, torch_version: str) -> set[str]:
    """The arguments that a table dates after this torch."""
    dated = re.findall(r"^\| `(\w+)` \|.*since torch ([\d.]+) \|$", table, re.MULTILINE)
    return {name for name, since in dated if claims.holds(f"<{since}", torch_version)}


def as_shown(line: str) -> list[tuple[str, str]]:
    call = ast.parse(line).body[0].value
    names = [(argument.id, "") for argument in call.args]
    return names + [(keyword.arg, ast.unparse(keyword.value)) for keyword in call.keywords]


@pytest.mark.parametrize(
    ("name", "line", "table"), SHOWN, ids=[row[1].split("(")[0] for row in SHOWN]
)
def test_a_signature_is_that_of_torch_and_each_argument_is_explained(name, line, table):
    call = re.match(r"dist\.(\w+)", line)[1]
    later = newer(table, torch.__version__)
    assert [one for one in as_shown(line) if one[0] not in later] == of_torch(call)
    explained = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines()))
    assert {argument for argument, _ in as_shown(line)} <= {*explained}


def test_an_argument_is_left_out_where_torch_is_older():
    (table,) = [table for name, _, table in SHOWN if name == "barrier"]
    assert [newer(table, version) for version in ("2.11.0", "2.12.0")] == [{"timeout"}, set()]


def test_every_lesson_on_a_call_shows_its_signature():
    assert {name for name, _, _ in SHOWN} == {*LESSONS}
    assert {re.match(r"dist\.(\w+)", line)[1] for _, line, _ in SHOWN} == CALLS
