"""Each program of docs/upstream shows its bug, or torch has cured it."""

import ast
import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.version import Version
from processes import finished
from repository import ROOT

FOLDER = ROOT / "docs" / "upstream"
PROGRAMS = sorted(FOLDER.glob("*.py"))
TORCH = Version(Version(importlib.metadata.version("torch")).base_version)


def facts(program: Path) -> dict[str, str]:
    """The lines of the docstring that have a name."""
    text = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))
    return dict(re.findall(r"^(\w+): (.+)$", text, re.MULTILINE))


@pytest.mark.weekly
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_the_bug_is_there_or_cured(program, tmp_path):
    said = facts(program)
    command = f"torchrun --nproc-per-node {said['torchrun']} --standalone {program}"
    env = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = finished(command, timeout=100, cwd=tmp_path, env=env)
    if "cured" in said and Version(said["cured"]) <= TORCH:
        assert done.returncode == 0, f"back in torch {TORCH}:\n{done.stderr}"
    else:
        assert done.returncode != 0, f"cured in torch {TORCH}: say so in {program}"
        assert said["shows"] in done.stderr, done.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_is_short_and_says_what_a_reader_of_a_report_asks(program):
    said = facts(program)
    text = program.read_text(encoding="utf-8")
    assert {"Expected", "torchrun", "bug", "shows", "thread"} <= said.keys()
    assert len(text.split('"""')[2].strip().splitlines()) <= 20
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    title = ast.get_docstring(ast.parse(text)).split("\n\n")[0].replace("\n", " ")
    newest = "cured" if said.get("cured") == "2.14.1" else "yes"
    assert f"| [{program.stem}]({program.name}) | {title} | yes | {newest} |" in page
