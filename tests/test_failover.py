"""train.py of the lesson `failover` survives real kills, and prints what the lesson shows."""

import re
import signal
from pathlib import Path

import pytest
import torch
from lesson_rules import Source
from processes import children, started

from collectives import LaunchError, launch
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
