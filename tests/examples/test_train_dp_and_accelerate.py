"""DataParallel and Accelerate train the network of train_ddp.py; batch norm alone makes a difference."""

import shutil
import subprocess
import sys

import pytest
import torch
from processes import finished
from repository import ROOT

pytest.importorskip("accelerate", reason="the extra `training` has it")

EXAMPLES = ROOT / "examples"
TWO_RANKS = f"torchrun --standalone --nproc-per-node 2 {EXAMPLES}"
ACCELERATE = f"{TWO_RANKS}/train_accelerate.py --double"


def trained(command, file, folder):
    """The parameters and buffers that a program has saved."""
    done = finished(command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / file)["model"], done.stdout.splitlines()


def error(one, other):
    """The largest relative error of a tensor with fractions."""
    assert one.keys() == other.keys()
    pairs = [(one[name], other[name]) for name in one if one[name].is_floating_point()]
    return max(((a - b).norm() / b.norm()).item() for a, b in pairs)


@pytest.mark.slow
def test_the_three_programs_end_with_the_same_parameters(tmp_path):
    """DDP accumulates under no_sync(), and Accelerate by accumulate()."""
    dp, said = trained(
        f"{sys.executable} {EXAMPLES}/train_dp.py --double --epochs 2", "checkpoint.pt", tmp_path
    )
    (tmp_path / "checkpoint.pt").unlink()  # DDP would continue from it
    ddp, lines = trained(
        f"{TWO_RANKS}/train_ddp.py --double --epochs 2 --accumulation 2", "checkpoint.pt", tmp_path
    )
    accelerate, _ = trained(f"{ACCELERATE} --epochs 2 --accumulation 2", "run/model.pt", tmp_path)
    assert error(dp, ddp) < 1e-6
    assert error(accelerate, ddp) < 1e-6
    assert said[-1] == lines[-1]

    # From the state of the first epoch, the second one has the same bits again.
    shutil.rmtree(tmp_path / "run" / "epoch-1")
    again, said = trained(f"{ACCELERATE} --epochs 2", "run/model.pt", tmp_path)
    assert [line.split(":")[0] for line in said[1:]] == ["epoch 1"]
    assert error(again, accelerate) == 0


@pytest.mark.slow
def test_batch_norm_alone_makes_two_ranks_differ_from_one(tmp_path):
    """Each rank normalizes its half of a batch: see training/buffers."""
    found = {}
    for model in ("linear", "conv"):
        options = f"--epochs 1 --accumulation 1 --model {model}"
        two, _ = trained(f"{ACCELERATE} {options}", "run/model.pt", tmp_path)
        shutil.rmtree(tmp_path / "run")
        alone = f"{sys.executable} {EXAMPLES}/train_accelerate.py --double {options}"
        one, said = trained(alone, "run/model.pt", tmp_path)
        shutil.rmtree(tmp_path / "run")
        assert said[0] == "1 ranks with batches of 64 (cpu)"
        found[model] = error(two, one)
    assert found["linear"] < 1e-9
    assert 0.01 < found["conv"] < 1


@pytest.mark.slow
def test_accelerate_launch_on_a_cpu_starts_one_rank_and_the_program_says_so(tmp_path):
    launch = f"accelerate launch --cpu --num_processes 2 {EXAMPLES}/train_accelerate.py --epochs 1"
    done = finished(launch, cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "1 ranks with batches of 32 (cpu)", done.stderr


@pytest.mark.slow
def test_sync_batch_norm_on_the_cpu_ends_with_a_sentence(tmp_path):
    program = [sys.executable, EXAMPLES / "train_accelerate.py", "--sync-batch-norm"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "--sync-batch-norm needs GPUs: torch has SyncBatchNorm for them only"
    )
