"""`make gpu`: each step ends in its limit, nothing names the machine, and a second run goes on."""

import contextlib
import getpass
import json
import os
import re
import socket
import sys

import psutil
import pytest
from hand_made import cell, matrix
from processes import is_alive, wait_until

from collectives.backends import availability
from collectives.matrix import recorded
from tools import first_gpu_run
from tools.first_gpu_run import GpuStep, hiding, run_all


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


# A step with a child: both must end. The child's id is what it prints first.
_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def planned(monkeypatch, tmp_path):
    monkeypatch.setattr(availability, "unavailable", lambda *words: None)
    ran = tmp_path / "ran"
    plan = [
        GpuStep("two_ranks", "One?", python(f"open({str(ran)!r}, 'a').write('x'); print(1)"), 60),
        GpuStep("ranks", "How many?", python("raise SystemExit('with {n} ranks')"), 60),
        GpuStep("waits", "Does it end?", python(_CHILD), 5),
    ]
    monkeypatch.setattr(first_gpu_run, "steps", lambda folder: plan)
    return ran


def test_each_step_ends_in_its_limit_and_a_second_run_does_not_repeat_it(planned, tmp_path, capsys):
    folder = tmp_path / "found"
    for _ in range(2):
        assert run_all(folder, minutes=30) == 1
    (child,) = re.findall(r"^\d+$", (folder / "waits.txt").read_text(), flags=re.M)
    with contextlib.suppress(psutil.NoSuchProcess):
        left = psutil.Process(int(child))
        wait_until(lambda: not is_alive(left), limit=30)
    assert planned.read_text() == "x"
    text = (folder / "summary.md").read_text()
    assert "| two_ranks | One? | exit status 0 |" in text
    assert "| ranks | How many? | exit status 1 |" in text
    assert "with 2 ranks" in text
    assert "| waits | Does it end? | ran into its limit |" in text
    assert "ranks: ended before (exit status 1)" in capsys.readouterr().out


STAGES = "stages: proved on all 2 ranks"
TAGS = "tags: skipped: nccl on cuda: NCCL ignores tags"
HALO = "halo: rank 1 raised Mismatch"


def test_the_summary_says_what_is_not_as_in_the_rehearsal(planned, monkeypatch, tmp_path):
    folder, before = tmp_path / "found", tmp_path / "rehearsed"
    kept = {"stages": "passed", "tags": "skipped", "halo": "failed", "never": "passed"}
    plan, rows = [], []
    for name, status, lines in (
        ("same", 0, [STAGES, TAGS, HALO]),
        ("other", 0, [STAGES.replace("stages", "tags"), HALO.replace("halo", "stages")]),
        ("fails", 1, []),
    ):
        code = f"print({chr(10).join(lines)!r}); raise SystemExit({status})"
        plan.append(GpuStep(name, "?", python(code), 60))
        rows.append({"name": name, "status": 0, "seconds": 0.0, "lessons": kept})
    plan.append(GpuStep("unknown", "?", python("raise SystemExit(1)"), 60))
    monkeypatch.setattr(first_gpu_run, "steps", lambda folder: plan)
    monkeypatch.setattr(first_gpu_run, "REHEARSED", before)
    for place, state in ((before, "refuses"), (folder, "works")):
        place.mkdir()
        (place / "quick.json").write_text(recorded.as_json(matrix(cell(state=state))))
    (before / "steps.json").write_text(json.dumps(rows))
    run_all(folder, minutes=30)
    text = (folder / "summary.md").read_text()
    *lines, of_the_matrix = (
        text.partition("## Not as rehearsed\n\n")[2].partition("\n\n")[0].splitlines()
    )
    assert lines == [
        "- other: stages failed; rehearsed: passed",
        "- other: tags passed; rehearsed: skipped",
        "- fails: exit status 1; rehearsed: exit status 0",
    ]
    assert of_the_matrix.startswith("- better: ")


def test_the_rehearsal_to_compare_with_has_steps_of_the_plan_and_no_times(tmp_path):
    kept = json.loads((first_gpu_run.REHEARSED / "steps.json").read_text())
    assert {row["name"] for row in kept} <= {step.name for step in first_gpu_run.steps(tmp_path)}
    cells = recorded.read(first_gpu_run.REHEARSED / "quick.json").cells
    assert {one.seconds for one in cells} | {row["seconds"] for row in kept} == {0.0}


def test_no_step_begins_after_the_minutes_that_one_gives(planned, tmp_path, capsys):
    run_all(tmp_path / "found", minutes=-1)
    assert not planned.exists()
    assert "The same command goes on with two_ranks." in capsys.readouterr().out


def test_the_output_names_neither_the_machine_nor_its_user_nor_a_path():
    names = [socket.gethostname(), getpass.getuser(), os.path.expanduser("~"), sys.prefix]
    shown = hiding()(
        "; ".join(f"<{name}>" for name in names) + f" {first_gpu_run.ROOT}/lessons/x.py"
    )
    assert not [name for name in names if name in shown and name not in "PYTHON HOME USER HOST"]
    assert shown.endswith("CHECKOUT/lessons/x.py")


def test_without_a_gpu_nothing_is_written(tmp_path, capsys):
    assert run_all(tmp_path / "found", minutes=30) == 3
    assert "nccl needs one GPU per rank" in capsys.readouterr().out
    assert not (tmp_path / "found").exists()


def test_every_command_of_the_plan_is_one_that_exists(tmp_path):
    """No GPU is here, so that each ends at once with 3, or with 1 where a rank asks."""
    from collectives.course import files

    for step in first_gpu_run.steps(tmp_path):
        if step.command[1:4] == ("-m", "collectives", "run"):
            names = step.command[4 : step.command.index("--backend")]
            assert files.choose(list(names), every=False), step
        if "--try" in step.command:
            assert step.command[step.command.index("--try") + 1] in first_gpu_run.TRIES
