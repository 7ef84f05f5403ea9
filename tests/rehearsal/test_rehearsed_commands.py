"""What the owner of one GPU, or of several, types: the tests, a lesson, the program to take away."""

import sys

import pytest
from processes import finished
from repository import ROOT

from collectives.course import files
from collectives.course.runner import run_step
from collectives.launcher.world import World

VISIBLE = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def test_the_tests_leave_the_gpus_alone_and_say_so():
    one = "tests/launcher/test_launch_failures.py::test_of_two_exceptions_the_first_is_reported"
    words = [sys.executable, "-m", "pytest", "-p", "no:xdist", one]
    done = finished(words, env=VISIBLE, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    assert "GPUs: hidden from these tests" in done.stdout


@pytest.mark.parametrize("visible", ["0", "0,1"], ids=["one", "two"])
def test_two_ranks_of_the_program_to_take_away_train_on_two_gpus_or_on_none(visible, tmp_path):
    program = [*TORCHRUN, ROOT / "examples" / "train_ddp.py", "--epochs", "1"]
    done = finished(program, env={"CUDA_VISIBLE_DEVICES": visible}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_matrix_finds_what_is_claimed_of_nccl():
    """Both were read in the same sources: what differs is a fault of the rehearsal, or of a claim."""
    words = [sys.executable, "-m", "collectives", "matrix", "--backend", "nccl", "--quick"]
    done = finished(words, env=VISIBLE)
    assert done.returncode == 0, done.stdout


def test_a_step_whose_ranks_choose_their_backend_says_which():
    step = next(one for one in files.load(files.find("launching")).STEPS if one.world.fresh)
    text = run_step(step, World.chosen(backend="nccl", timeout=100)).text
    assert text.endswith("on gloo: fresh ranks choose their backend themselves\n"), text
