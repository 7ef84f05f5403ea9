"""The command line does what it says, and its exit status tells what became of it."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from processes import finished, hear_signals
from typer.testing import CliRunner

from collectives.backends import machine
from collectives.cli import app, commands
from collectives.course import chapters

LESSON = """
from collectives import check, needs
import torch
import torch.distributed as dist


def total(rank, world_size, device):
    x = torch.tensor([rank], device=device)
    dist.all_reduce(x)
    check(x, torch.tensor([world_size * (world_size - 1) // 2]), "all_reduce(SUM)")
    return {"after": x}


def wrong(rank, world_size, device):
    check(torch.tensor([rank]), torch.tensor([-1]), "nothing")


@needs(ranks=2)
def pair(rank, world_size, device):
    return "sent"


def forever(rank, world_size, device):
    import time

    time.sleep(600)

"""


def lesson(folder, steps: str, name: str = "mine"):
    """The path of a lesson with these steps."""
    path = folder / f"{name}.py"
    path.write_text(f"{LESSON}\nSTEPS = {steps}\n")
    return str(path)


def collectives(*words):
    """The command, in this process: what it printed, and its exit status."""
    return CliRunner().invoke(app, [str(word) for word in words])


def test_python_m_collectives_tells_its_version():
    answer = finished("python -m collectives --version")
    assert (answer.returncode, answer.stdout) == (0, f"collectives {machine.version()}\n")


def test_status_0_when_every_step_is_proved_with_the_progress_on_stderr(tmp_path):
    result = collectives("run", lesson(tmp_path, "[total]"), "--nproc", 2)
    assert result.exit_code == 0, result.output
    assert "mine (1 of 1)" in result.stderr
    assert "1 lesson in " in result.stderr
    assert result.stdout.startswith(
        "total: proved on all 2 ranks\n  rank  after\n  0     [1]\n  1     [1]\n"
    )
    assert result.stdout.splitlines()[-1].split() == ["mine", "1", "0", "0"]


def test_status_1_when_a_step_fails_and_the_others_still_run(tmp_path):
    other = lesson(tmp_path, "[total]", "other")
    result = collectives("run", lesson(tmp_path, "[wrong, total]"), other, "-n", 2)
    assert result.exit_code == 1
    assert result.stdout.count("total: proved on all 2 ranks") == 2
    assert "wrong: rank " in result.stderr
    assert "should be [-1]" in result.stderr
    mine = next(line for line in result.stdout.splitlines() if line.startswith("mine"))
    assert mine.split()[:5] == ["mine", "1", "0", "1", "wrong:"]
    assert "should be [-1]" in mine


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module_anywhere", "No module named 'no_such_module_anywhere'"),
        ("raise SystemExit(7)", "broken.py cannot be loaded: SystemExit: 7"),
    ],
)
def test_status_1_when_a_file_cannot_be_loaded_and_the_others_still_run(tmp_path, text, message):
    broken = tmp_path / "broken.py"
    broken.write_text(f"{text}\n")
    result = collectives("run", broken, lesson(tmp_path, "[total]"), "-n", 1)
    assert result.exit_code == 1
    assert "total: proved on 1 rank" in result.stdout
    assert message in result.stdout


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("al_reduce", "all_reduce"), ("mistakes/ordr", "mistakes/order"), ("mistake", "mistakes")],
)
def test_status_2_for_an_unknown_name_with_the_nearest_and_the_command_that_lists_all(
    name, nearest
):
    result = collectives("run", name)
    assert result.exit_code == 2
    assert f"did you mean '{nearest}'? `collectives list` shows all" in result.stderr


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_list_is_as_wide_as_the_terminal_and_a_line_a_lesson_in_a_pipe(
    columns, monkeypatch, capsys
):
    commands.list_lessons("model_parallel")
    raw = capsys.readouterr().out
    assert len(raw.splitlines()) == 1 + len(chapters.find("model_parallel").lessons)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    commands.list_lessons("model_parallel")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert shown.split() == raw.split()
    starts = {len(line) - len(line.lstrip()) for line in shown.splitlines()}
    assert len(starts) <= 3  # a chapter, a lesson, and what hangs below it


def test_status_2_for_the_route_together_with_a_lesson():
    result = collectives("run", "--route", "scatter")
    assert result.exit_code == 2
    assert "leave out the other names" in result.stderr


WRONG = """
# %%
def total(rank, world_size, device):
    x = torch.tensor([rank], device=device)
    dist.all_reduce(x)
    check(x, torch.tensor([world_size * (world_size - 1) // 2]), "all_reduce(SUM)")

# %% [markdown]
# ## Make it wrong
#
# 1. **The largest rank.** In `total`, change
#    `dist.all_reduce(x)` to `dist.all_reduce(x, op=dist.ReduceOp.MAX)`.
# 2. **The same.** In `total`, change `[rank]` to `[rank + 0]`.

# %%
STEPS = [total]
"""


def test_wrong_prints_what_the_proof_says_of_each_change_and_status_1_if_it_says_nothing(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(LESSON + WRONG)
    result = collectives("run", path, "--wrong", "-n", 3)
    first, said, *others = result.stdout.splitlines()
    assert first == "mine 1: The largest rank"
    assert "got [2], should be [3]" in said
    assert others == ["mine 2: The same", "  nothing was noticed"]
    assert result.exit_code == 1


def test_status_3_when_every_step_is_skipped_with_the_reason_in_the_summary(tmp_path):
    result = collectives("run", lesson(tmp_path, "[pair]"), "-n", 1)
    assert result.exit_code == 3
    assert result.stdout.startswith("pair: skipped: it needs at least 2 ranks")
    assert "pair: it needs at least 2 ranks, this world has 1" in result.stdout.splitlines()[-1]


def test_a_skipped_step_among_proved_ones_is_no_failure(tmp_path):
    result = collectives("run", lesson(tmp_path, "[pair, total]"), "-n", 1)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].split()[:4] == ["mine", "1", "1", "0"]


def test_a_step_that_a_claim_refuses_is_skipped_with_its_reason(tmp_path, monkeypatch):
    reasons = {("total", "gloo", "cpu"): "gloo on cpu: it cannot add"}
    monkeypatch.setattr("collectives.backends.claims.refusal", lambda *asked: reasons.get(asked))
    result = collectives("run", lesson(tmp_path, "[total]"), "-n", 1, "--backend", "gloo")
    assert result.exit_code == 3
    assert result.stdout.startswith("total: skipped: gloo on cpu: it cannot add\n")


def test_status_3_for_nccl_without_a_gpu_said_once(tmp_path):
    result = collectives("run", lesson(tmp_path, "[total, pair]"), "--backend", "nccl")
    assert (result.exit_code, result.stdout) == (3, "")
    assert len(result.stderr.splitlines()) == 1
    assert "nccl needs one GPU per rank: 0 visible" in result.stderr


def test_status_130_with_one_line_for_ctrl_c(tmp_path):
    """It reaches all processes of a terminal, also those that still import torch."""
    path = lesson(tmp_path, "[forever, total]")
    command = [sys.executable, "-m", "collectives", "run", path, "-n", "2"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    session = {"start_new_session": True, "preexec_fn": hear_signals}
    with subprocess.Popen(command, **streams, **session) as process:
        while "ranks are at work" not in process.stderr.readline():
            assert process.poll() is None
        ranks = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err.strip()) == (130, "", "forever: interrupted")
    assert psutil.wait_procs(ranks, timeout=10)[1] == []


@pytest.mark.slow
def test_under_torchrun_rank_0_alone_prints(tmp_path):
    path = lesson(tmp_path, "[total]")
    answer = finished(f"torchrun --nproc-per-node 2 -m collectives run {path}")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == collectives("run", path, "-n", 2).stdout
    assert answer.stderr.count("mine (1 of 1)") == 1
