"""Flags and notebooks show pictures and timelines of the run; without them nothing is recorded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collectives import launch
from collectives.cli import app
from collectives.lesson import files, runner
from collectives.lesson.show import Display
from collectives.pictures import illustration
from collectives.recording import record

LESSONS = Path(__file__).parent.parent / "lessons"
MINE = """
from collectives import check
from collectives.lesson import run
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


def same(rank, world_size, device):
    x = torch.tensor([7])
    everyone = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everyone, x)
    return everyone


if __name__ == "__main__":
    run(ring)
    run(total)
STEPS = [ring, total, same]
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def collectives(*words):
    return CliRunner().invoke(app, ["run", *map(str, words), "-n", "3"])


def recorded(path, step: str, nproc=4):
    function = next(one for one in files.load(path).STEPS if one.__name__ == step)
    return [
        call
        for _, calls in launch(record.recorded(function, tensors=True), nproc)
        for call in calls
    ]


def test_without_a_flag_nothing_is_recorded(mine, monkeypatch):
    steps, real = [], record.recorded
    monkeypatch.setattr(
        record, "recorded", lambda step, **how: steps.append(step.__name__) or real(step, **how)
    )
    collectives(mine)
    assert steps == []
    collectives(mine, "--timeline")
    assert steps == ["ring", "total", "same"]


def test_picture_prints_where_the_data_of_the_run_went_below_the_results(mine):
    result = collectives(mine, "--picture")
    assert result.exit_code == 0
    assert result.stdout.index("total: proved") < result.stdout.index("rank 1   10xr1    111+r0-2")
    assert "ring: no picture" in result.stderr
    assert "try --timeline" in result.stderr
    assert "same: no picture" in result.stderr
    assert "cannot be traced" in result.stderr


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_save_picture_writes_a_file_for_each_step_that_has_a_picture(mine, tmp_path, suffix):
    result = collectives(mine, "--save-picture", tmp_path / f"p.{suffix}")
    assert result.exit_code == 0
    assert sorted(path.name for path in tmp_path.glob("p*")) == sorted(
        [f"p.{suffix}", f"p-total.{suffix}"]
    )
    assert (
        (tmp_path / f"p.{suffix}")
        .read_bytes()
        .startswith({"svg": b"<svg", "png": b"\x89PNG"}[suffix])
    )


def test_timeline_and_trace_hold_every_call_and_every_message(mine, tmp_path):
    result = collectives(mine, "--timeline", "--trace", tmp_path / "t.json")
    assert result.exit_code == 0
    assert result.stdout.count("isend to") == 3
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "step"] == ["ring"] * 3 + [
        "total"
    ] * 3 + ["same"] * 3
    assert (
        sum(event["ph"] == "s" for event in events)
        == sum(event["ph"] == "f" for event in events)
        == 3
    )


def test_a_lesson_file_takes_the_same_flags_and_its_trace_holds_all_of_its_steps(mine, tmp_path):
    command = [
        sys.executable,
        mine,
        "-n",
        "2",
        "--picture",
        "--timeline",
        "--trace",
        tmp_path / "t.json",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "11+r0-1" in result.stdout
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event.get("cat") == "step"} == {"ring", "total"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "no/such/t.json"], "name a file in a folder that exists"),
        (["--save-picture", "p.jpg"], "written as .svg or .png"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(mine, words, message):
    result = collectives(mine, *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "proved" not in result.stdout


def test_a_step_that_failed_still_has_a_timeline(tmp_path):
    path = tmp_path / "stuck.py"
    path.write_text(
        MINE.replace(
            "    dist.all_reduce(x)",
            "    dist.barrier()\n    if rank == 1:\n        raise RuntimeError('tired')\n"
            "    dist.all_reduce(x)",
        )
    )
    result = collectives(path, "--timeline", "--trace", tmp_path / "t.json")
    assert result.exit_code == 1
    assert "tired" in result.stderr
    assert result.stdout.count("barrier  ") == 3
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["pid"] for event in events if event["name"] == "barrier"] == [0, 1, 2]
    assert {event["name"] for event in events if event["ph"] == "B"} <= {"all_reduce"}, (
        "what the others were in when rank 1 failed"
    )


def test_a_notebook_prints_what_it_printed_and_then_shows_the_picture(mine, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(runner, "_in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, **how: shown.append((data, how)))
    ring, total, same = files.load(mine).STEPS
    for step in (total, ring, same):
        runner.run(step)
    assert [line for line in capsys.readouterr().out.splitlines() if "proved" in line] == [
        f"{name}: proved on all 4 ranks" for name in ("total", "ring", "same")
    ]
    (picture, how), (timeline, _) = (
        shown  # and none for `same`, whose numbers do not tell where they come from
    )
    assert 'id="after/r3/e0"' in picture["image/svg+xml"]
    assert 'id="r0/c0-r1/c1"' in timeline["image/svg+xml"]
    assert how["metadata"]["image/svg+xml"]["alt"] == picture["text/plain"]
    assert "1111 reduced from" in picture["text/plain"]


def test_what_was_really_received_is_drawn(tmp_path):
    """Here each rank gets another rank's number instead of the sum."""
    (tmp_path / "turned.py").write_text(
        MINE.replace(
            "dist.all_reduce(x)", "dist.all_reduce(x); x.fill_(10**((rank + 1) % world_size))"
        )
    )
    assert [
        row.tolist() for row in illustration.data(recorded(tmp_path / "turned.py", "total")).after
    ] == [[1111]] * 4


@pytest.mark.parametrize(
    ("name", "step", "title"),
    [
        ("broadcast", "broadcast", "broadcast"),
        ("scatter", "scatter", "scatter"),
        ("gather", "gather", "gather"),
        ("all_to_all", "all_to_all", "all_to_all"),
    ],
)
def test_the_data_of_a_lesson_are_those_of_its_collective(name, step, title):
    found = illustration.data(recorded(LESSONS / f"{name}.py", step))
    assert found.title == title
    assert len(found.before) == len(found.after) == 4


@pytest.mark.parametrize("step", ["send_recv", "receive_from_any"])
def test_a_lessons_timeline_is_the_same_in_every_run(step):
    from collectives.pictures import picture

    drawn = {
        picture.svg(illustration.illustrate(step, recorded(LESSONS / "send_recv.py", step)))
        for _ in range(3)
    }
    assert len(drawn) == 1


def test_without_matplotlib_the_terminal_still_has_its_picture(monkeypatch):
    for name in [
        name
        for name in sys.modules
        if name.startswith(
            ("collectives.pictures.picture", "collectives.pictures.timeline", "matplotlib")
        )
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("collectives.pictures.picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"collectives\[pictures\]"):
        Display(save_picture=Path("p.svg"))
    assert Display(picture=True, timeline=True).picture
    from collectives.pictures import text

    assert text.text([None], [None])
