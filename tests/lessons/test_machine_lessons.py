"""The lessons on machines: what they say where they cannot run.

(That they prove and print what their notebooks show is tested in test_notebooks.py.)
"""

import os
import runpy
import subprocess
import sys

import pytest

from collectives import in_lab, stdout_lines
from collectives.course import chapters, files, runner
from collectives.course.results import lab_table
from collectives.lab import available
from collectives.pictures.cables import Cables


@in_lab
def rows():
    return [{"rank": 0, "sum": 11}, {"rank": 10, "sum": 2}]


def lines():
    return {"node0": ["one", "two"], "node1": ["three"]}


def test_what_a_step_returns_is_printed_by_machine_or_in_columns():
    title = "step: proved in a lab\n"
    columns = f"{title}  rank  sum\n  0     11\n  10    2\n"
    assert lab_table("step", rows()) == columns
    assert lab_table("step", Cables(rows(), [])) == columns
    assert lab_table("step", lines()) == (f"{title}  node0: one\n  node0: two\n  node1: three\n")


def test_a_command_that_fails_on_a_machine_raises_what_it_said():
    done = [
        subprocess.CompletedProcess([], 0, "b\na\n", ""),
        subprocess.CompletedProcess([], 3, "", "no"),
    ]
    assert stdout_lines(done[:1]) == {"node0": ["a", "b"]}
    with pytest.raises(RuntimeError, match="node1: status 3: no"):
        stdout_lines(done)


def test_under_a_launcher_a_step_says_that_it_starts_its_ranks_itself(monkeypatch):
    monkeypatch.setattr(
        os,
        "environ",
        os.environ
        | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        | {"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
    )
    report = runner.run_step(rows, None)
    assert report.text.startswith("rows: skipped: it makes its own machines")


@pytest.mark.parametrize("lesson", chapters.read()["machines"].lessons, ids=lambda it: it.path.stem)
def test_where_there_can_be_no_lab_the_status_is_3_and_the_reason_is_said(
    lesson, monkeypatch, capsys
):
    monkeypatch.setattr(available, "missing", lambda: "no lab here")
    monkeypatch.setattr(sys, "argv", [lesson.path.name])
    with files.imports_from(lesson.path.parent), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(lesson.path), run_name="__main__")
    assert ended.value.code == 3
    assert f"{lesson.path.stem}: no lab here" in capsys.readouterr().err
