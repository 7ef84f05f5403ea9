"""train.py of the lesson `failover` survives real kills, and prints what the lesson shows."""

import contextlib
import functools
import os
import re
import signal
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lesson_rules import Source
from processes import children, started

from collectives import LaunchError, check_training, launch
from collectives.lesson import files
from collectives.lesson.chapters import CHAPTERS

FILE = files.find("training/failover")
PROSE = Source(CHAPTERS["training"], "failover", Path(FILE).read_text("utf-8")).prose
(PROGRAM,) = re.findall(r"Save this as `train.py`:\n\n```python\n(.*?)^```", PROSE, re.M | re.S)
(OTHER_CURE,) = re.findall(r"`init_process_group`:\n\n```python\n(.*?)^```", PROSE, re.M | re.S)
SESSIONS = re.findall(r"^```console\n(.*?)^```", PROSE, re.M | re.S)
KILLS, SIGTERM = (re.findall(r"^\$ (torchrun .*)\n((?:[^$].*\n)*)", one, re.M) for one in SESSIONS)
CURE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def run(command, folder, program=PROGRAM, **environ):
    """The exit status, stdout and stderr of a command of the lesson. It leaves no process."""
    (folder / "train.py").write_text(program)
    (folder / "kept").mkdir(exist_ok=True)
    before = children()
    with started(command, folder, **environ) as process:
        stdout, stderr = process.communicate(timeout=150)
    assert children() <= before
    return process.returncode, stdout, stderr


@pytest.mark.slow
def test_after_three_kills_the_training_ends_with_the_bits_of_an_undisturbed_one(tmp_path):
    ((command, shown),) = KILLS
    assert f"$ export {next(iter(CURE))}=1\n" in SESSIONS[0]
    status, stdout, stderr = run(command, tmp_path, **CURE)
    assert (status, stdout) == (0, shown), stderr
    assert stderr.count("failed (exitcode: -9)") == 3


@pytest.mark.slow
def test_a_store_with_a_prefix_for_each_restart_is_a_cure_too(tmp_path):
    ((command, shown),) = KILLS
    line = '    dist.init_process_group("gloo")\n'
    assert PROGRAM.count(line) == 1
    status, stdout, stderr = run(command, tmp_path, PROGRAM.replace(line, OTHER_CURE))
    assert (status, stdout) == (0, shown), stderr


@pytest.mark.slow
def test_after_more_kills_than_restarts_the_same_command_continues(tmp_path):
    ((command, _),) = KILLS
    status, _, stderr = run(command.replace("restarts 3", "restarts 0"), tmp_path, **CURE)
    assert (status, stderr.count("failed (exitcode: -9)")) == (1, 1)
    command, _ = SIGTERM[1]
    status, stdout, stderr = run(command, tmp_path)
    said = "restart 0 finds: step-0005.pt\n23 more steps, and the bits of an undisturbed training\n"
    assert (status, stdout) == (0, said), stderr


RESTARTED = """
import os, sys
import torch.distributed as dist
store, _, _ = next(dist.rendezvous("env://"))
print("found" if store.check(["left"]) else "new", flush=True)
store.set("left", "")
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ < (2, 13), reason="measured since torch 2.13")
@pytest.mark.parametrize(("environ", "found"), [({}, "found"), (CURE, "new")], ids=["bare", "cure"])
def test_this_torch_still_needs_the_cure(tmp_path, environ, found):
    """If "bare" fails, a restart works by itself: the lesson must name the version that can."""
    command = "torchrun --standalone --nproc-per-node 1 --max-restarts 1 train.py"
    status, stdout, stderr = run(command, tmp_path, RESTARTED, **environ)
    assert (status, stdout) == (0, f"new\n{found}\n"), stderr


@pytest.mark.slow
def test_after_sigterm_all_ranks_save_and_stop_and_the_same_command_continues(tmp_path):
    for number, (command, shown) in enumerate(SIGTERM):
        status, stdout, stderr = run(command, tmp_path)
        assert (status, stdout) == (1 - number, shown), stderr
        (said,) = re.findall(r"^stopped by SIGTERM.*$", PROSE, re.M)
        assert stderr.count(said) == (0 if number else 2)


@pytest.mark.slow
def test_on_a_full_disk_the_older_checkpoint_is_kept_and_the_same_command_continues(tmp_path):
    """A limit on the size of files: the system call fails as on a disk without room."""
    command = SIGTERM[1][0]
    (said,) = re.findall(r"^nothing saved.*$", PROSE, re.M)
    said = said.replace("No space left on device", "File too large")
    # The first checkpoint fits, and then the disk is full.
    full = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
lesson.at_call(os, "fsync", 1, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, -1))).start()
"""
    status, stdout, stderr = run(
        command, tmp_path, PROGRAM.replace("\n\ndef kill", full + "\n\ndef kill")
    )
    assert status == 1
    assert said in stderr
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["draft", "step-0005.pt"]
    status, stdout, stderr = run(command, tmp_path)
    assert (status, stdout.splitlines()[0]) == (0, "restart 0 finds: draft step-0005.pt"), stderr


# Before which call of which function a rank stops. While rank 0 saves, the others are a step ahead.
AHEAD = (torch.optim.SGD, "zero_grad", 11)
PHASES = {
    "load": [(torch, "load", 1), (dist, "broadcast_object_list", 1)],
    "forward": [(torch.nn.Sequential, "forward", 8)] * 2,
    "backward": [(torch.Tensor, "backward", 8)] * 2,
    "all_reduce": [(dist, "all_reduce", 38)] * 2,
    "step": [(torch.optim.SGD, "step", 8)] * 2,
    "write": [(os, "fsync", 2), AHEAD],
    "rename": [(Path, "replace", 2), AHEAD],
}


def crash():
    raise InterruptedError


def stop_and_continue(rank, world_size, device, phases):
    """Runs in a rank: how many steps are left after a crash in each phase."""
    lesson = files.load(FILE)
    batches = lesson.shuffled().split(64)[:12]
    train = functools.partial(lesson.train, backward=lesson.on_my_shard, device=device)
    expected, _ = train(lesson.network(0, device), batches=batches)
    found = {}
    for phase, accidents in phases.items():
        with tempfile.TemporaryDirectory() as folder:
            if phase == "load":
                train(lesson.network(0, device), batches=batches[:5], folder=folder)
            with lesson.at_call(*accidents[rank], crash), contextlib.suppress(InterruptedError):
                train(lesson.network(0, device), batches=batches, folder=folder)
            got, losses = train(lesson.network(1, device), batches=batches, folder=folder)
        check_training(got, expected, phase, limit=0.0)
        found[phase] = len(losses.values)
    return found


def test_after_a_crash_in_any_phase_the_training_continues_from_step_5_bit_for_bit():
    found = launch(stop_and_continue, 2, args=(PHASES,), backend="gloo", timeout=100.0)
    assert found == [dict.fromkeys(PHASES, 7)] * 2


def too_few_images(rank, world_size, device):
    lesson = files.load(FILE)
    lesson.train(lesson.network(0, device), lesson.on_my_shard, [torch.arange(2)], device)


def test_more_ranks_than_images_are_refused_in_a_sentence():
    with pytest.raises(LaunchError, match="2 images for 3 ranks: use fewer ranks or larger"):
        launch(too_few_images, 3, backend="gloo")


def test_the_lesson_gives_the_signal_handler_back():
    assert launch(handler_after_a_step, 2, backend="gloo") == [True, True]


def handler_after_a_step(rank, world_size, device):
    before = signal.getsignal(signal.SIGTERM)
    files.load(FILE).failover(rank, world_size, device)
    return signal.getsignal(signal.SIGTERM) == before
