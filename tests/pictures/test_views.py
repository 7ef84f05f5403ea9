"""Flags and notebooks show pictures and traces of the run; without them nothing is recorded."""

import base64
import json
import re
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collectives.cli import app
from collectives.course import files, in_notebook, runner
from collectives.launcher import start

MINE = """
from collectives import check, run
import torch
import torch.distributed as dist


def ring(rank, world_size, device):
    received = torch.zeros(1)
    sending = dist.isend(torch.tensor([float(rank)]), dst=(rank + 1) % world_size)
    dist.recv(received, src=(rank - 1) % world_size)
    sending.wait()
    return received


def total(rank, world_size, device):
    x = torch.tensor([10**rank])
    dist.all_reduce(x)
    return x


def silent(rank, world_size, device):
    return rank


if __name__ == "__main__":
    run(ring)
    run(total)
STEPS = [ring, total, silent]
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def collectives(*words):
    return CliRunner().invoke(app, ["run", *map(str, words), "-n", "3"])


def test_without_a_flag_nothing_is_recorded(mine, monkeypatch):
    records, real = [], start.start

    def noting(spec, watch):
        records.append(watch.record)
        return real(spec, watch)

    monkeypatch.setattr(start, "start", noting)
    mine.write_text(MINE.replace("[ring, total, silent]", "[total]"))
    collectives(mine)
    collectives(mine, "--trace", mine.with_name("t.json"))
    assert records == [None, "calls"]


def test_picture_prints_where_the_data_of_the_run_went_below_the_results(mine):
    result = collectives(mine, "--picture")
    assert result.exit_code == 0
    shown = "rank 1   10 (r1)    111 (sum of r0-r2)"
    assert result.stdout.index("total: proved") < result.stdout.index(shown)
    assert "ring: no picture" in result.stderr
    assert "try --save-picture" in result.stderr
    assert "silent: no picture" in result.stderr
    assert "cannot be traced" in result.stderr


def test_save_picture_writes_a_file_for_each_step_that_has_a_picture(mine, tmp_path):
    assert collectives(mine, "--save-picture", tmp_path / "p.svg").exit_code == 0
    files = sorted(tmp_path.glob("p*"))
    assert [path.name for path in files] == ["p-total.svg", "p.svg"]
    assert all(path.read_bytes().startswith(b"<svg") for path in files)


def test_a_lesson_file_takes_the_same_flags_and_its_trace_holds_all_of_its_steps(
    mine, tmp_path, monkeypatch, capsys
):
    options = ["-n", "2", "--picture", "--trace", str(tmp_path / "t.json")]
    monkeypatch.setattr(sys, "argv", [str(mine), *options])
    monkeypatch.setitem(sys.modules, "mine", lesson := files.load(mine))
    for step in lesson.STEPS[:2]:
        runner.run(step)
    assert "11 (sum of r0-r1)" in capsys.readouterr().out
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event.get("cat") == "step"} == {"ring", "total"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "no/such/t.json"], "t.json cannot be written: No such file or directory"),
        (["--save-picture", "p.jpg"], "written as .svg or .png"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(mine, words, message):
    result = collectives(mine, *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "proved" not in result.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has this file")
def test_a_trace_that_cannot_be_written_is_told_once_and_every_result_is_printed(mine):
    result = collectives(mine, "--trace", "/dev/full")
    assert result.exit_code == 2, result.exception
    assert result.stderr.count("/dev/full cannot be written: No space left on device.") == 1
    assert result.stdout.count("proved on all 3 ranks") == 3


def test_a_step_that_failed_is_still_in_the_trace(mine, tmp_path):
    tired = "    dist.barrier()\n    if rank == 1:\n        raise RuntimeError('tired')\n"
    mine.write_text(MINE.replace(call := "    dist.all_reduce(x)", tired + call))
    result = collectives(mine, "--trace", tmp_path / "t.json")
    assert result.exit_code == 1
    assert "tired" in result.stderr
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["pid"] for event in events if event["name"] == "barrier"] == [0, 1, 2]
    # What the others were in when rank 1 failed:
    assert {event["name"] for event in events if event["ph"] == "B"} <= {"all_reduce"}


def test_a_notebook_prints_what_it_printed_and_then_shows_the_picture(mine, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(runner, "_in_notebook", lambda: True)
    monkeypatch.setattr(in_notebook, "note_after", lambda *_: nullcontext())  # on a busy machine
    monkeypatch.setattr(in_notebook, "display", lambda data, **how: shown.append((data, how)))
    ring, total, silent = files.load(mine).STEPS
    for step in (total, ring, silent):
        runner.run(step)
    printed = re.findall("^(.*): proved on all 4 ranks$", capsys.readouterr().out, re.MULTILINE)
    assert printed == ["total", "ring", "silent"]
    # none for `silent`, which makes no call
    (picture, how), (caption, _), (timeline, _), (below, _) = shown
    assert caption["text/html"].startswith(
        "<p><b>all_reduce: whose values each rank has before and after.</b> Colour: the rank that"
    )
    assert below["text/plain"] == (
        "What each rank calls, in order, and who sends to whom. "
        "Left to right shows order, not duration. Thin bar: a transfer, from its start to its wait."
    )
    assert 'id="after/r3/e0"' in picture["image/svg+xml"]
    assert 'id="r0/c0-r1/c1"' in timeline["image/svg+xml"]
    assert "1111 reduced from" in how["metadata"]["image/png"]["alt"]
    assert "rank 1   10 (r1)     1111 (sum of r0-r3)" in picture["text/plain"]
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG")


def test_behind_a_click_a_notebook_shows_the_picture_as_an_image(mine, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(runner, "_in_notebook", lambda: True)
    monkeypatch.setattr(in_notebook, "note_after", lambda *_: nullcontext())  # on a busy machine
    monkeypatch.setattr(in_notebook, "display", lambda data, **how: shown.append(data))
    runner.run(files.load(mine).STEPS[1], folded=True)
    (page,) = shown
    assert capsys.readouterr().out == ""
    assert re.findall("<(?!/)(?:details|pre|img|svg)", page["text/html"]) == [
        *("<details", "<pre", "<img"),
    ]
    assert "total: proved on all 4 ranks" in page["text/html"]
    assert "1111 (sum of r0-r3)" in page["text/plain"]


def test_a_notebook_says_that_a_step_runs_and_then_takes_it_away(monkeypatch):
    said = []

    class Handle:
        def update(self, data, **_):
            said.append(data["text/plain"])

    def display(data, **_):
        said.append(data["text/plain"])
        waiting.set()
        return Handle()

    monkeypatch.setattr(in_notebook, "display", display)
    waiting = threading.Event()
    with in_notebook.note_after(0.0, "at work"):
        assert waiting.wait(60)
    assert said == ["at work", ""]


HEARTS = """
from matplotlib.figure import Figure


class Heart:
    def __init__(self, rank):
        self.rank = rank

    def __str__(self):
        return f"heart {self.rank}"

    def draw(self, title, ranks):
        figure = Figure()
        figure.text(0.5, 0.5, " and ".join(map(str, ranks)))
        return figure


def hearts(rank, world_size, device):
    return {"heart": Heart(rank)}


STEPS = [hearts]
"""


def test_a_result_of_a_class_of_ones_own_draws_itself(tmp_path):
    (tmp_path / "hearts.py").write_text(HEARTS)
    result = collectives(tmp_path / "hearts.py", "--save-picture", tmp_path / "h.svg")
    assert "rank  heart\n  0     heart 0\n  1     heart 1\n  2     heart 2\n" in result.stdout
    assert b"heart 0 and heart 1 and heart 2" in (tmp_path / "h.svg").read_bytes()


WITHOUT_MATPLOTLIB = """
import sys
from pathlib import Path
sys.modules["matplotlib"] = None
from collectives.course.show import Display
from collectives.pictures import text
from collectives.pictures.data_panels import CallPanel
from collectives.pictures.origin import trace
assert Display(picture=True) and text.text(CallPanel(trace([None], [None])))
Display(save_picture=Path("p.svg"))
"""


def test_without_matplotlib_the_error_names_the_extra_and_the_terminal_still_has_its_picture():
    command = [sys.executable, "-c", WITHOUT_MATPLOTLIB]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "ValueError: pictures need matplotlib" in done.stderr
    assert "pip install 'torch-collectives[pictures]'" in done.stderr
