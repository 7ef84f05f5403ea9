"""Each of the first lessons on calls shows the signature of its call as torch has it, and explains each argument."""

import ast
import inspect
import re

import pytest
import torch.distributed as dist
from lesson_source import FIRST_CALLS, Source

BLOCK = re.compile(r"^```python\n((?:dist\.\w+\(.*=.*\)\n)+)```\n\n((?:\|.*\n?)+)", re.MULTILINE)
SHOWN = [
    (name, line, table)
    for name in FIRST_CALLS
    for block, table in BLOCK.findall(Source(name).prose)
    for line in block.splitlines()
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


def as_shown(line: str) -> list[tuple[str, str]]:
    call = ast.parse(line).body[0].value
    names = [(argument.id, "") for argument in call.args]
    return names + [(keyword.arg, ast.unparse(keyword.value)) for keyword in call.keywords]


@pytest.mark.parametrize(
    ("name", "line", "table"), SHOWN, ids=[row[1].split("(")[0] for row in SHOWN]
)
def test_a_signature_is_that_of_torch_and_each_argument_is_explained(name, line, table):
    call = re.match(r"dist\.(\w+)", line)[1]
    assert as_shown(line) == of_torch(call)
    explained = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines()))
    assert {argument for argument, _ in of_torch(call)} <= {*explained}


def test_every_lesson_on_a_call_of_the_route_shows_one():
    assert {name for name, _, _ in SHOWN} == {*FIRST_CALLS}
