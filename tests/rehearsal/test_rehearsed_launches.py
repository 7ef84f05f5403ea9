"""What `launch` does on GPUs: whom it blames, which backend it takes, and what comes back."""

import os
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from processes import free_port
from repository import ROOT

from collectives import LaunchError, launch
from collectives.backends import availability

PROGRAM = """
from collectives import launch
import torch.distributed as dist
import torch

def where(rank, n, device):
    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    return f"{device} of {torch.cuda.device_count()}", torch.cuda.current_device(), x.item()

if __name__ == "__main__":
    print(launch(where, backend="nccl", timeout=100))
"""


def test_the_second_machine_counts_its_gpus_from_0_again(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    meeting = {"TORCHELASTIC_RUN_ID": "1", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
    meeting |= {"MASTER_PORT": str(free_port()), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    machines = [{"RANK": "0", "CUDA_VISIBLE_DEVICES": "0"}]
    machines += [{"RANK": "1", "CUDA_VISIBLE_DEVICES": "1,2"}]
    ranks = [
        subprocess.Popen(
            [sys.executable, tmp_path / "program.py"],
            env=os.environ | meeting | machine,
            stdout=subprocess.PIPE,
            text=True,
        )
        for machine in machines
    ]
    try:
        said = [rank.communicate(timeout=150)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert said == ["[('cuda:0 of 1', 0, 2.0), ('cuda:0 of 2', 0, 2.0)]\n"] * 2


def stays_away(rank, n, device):
    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    if rank == 2:
        time.sleep(1000)
    dist.all_reduce(x)
    return x.item()


def test_a_hang_is_blamed_on_the_rank_that_did_not_call():
    launch(backend_and_device, 4, timeout=100)  # the ranks of the next one start at once
    with pytest.raises(LaunchError) as failure:
        launch(stays_away, 4, backend="nccl", timeout=20)
    assert (failure.value.kind, failure.value.rank) == ("hung", 2)
    assert "slow: rank 2 has not joined all_reduce #2" in str(failure.value)


def slow_to_connect(rank, n, device):
    x, got = torch.full((1,), rank, device=device), torch.empty(1, device=device, dtype=torch.int64)
    real = dist.ProcessGroupGloo

    def after_a_while(*args):
        time.sleep(2)
        return real(*args)

    sys.modules["rehearsed_cuda"].carry_with(after_a_while)
    works = dist.isend(x, 1 - rank), dist.irecv(got, 1 - rank)
    for work in works:
        work.wait()
    return got.item()


def test_the_first_message_connects_two_ranks_which_is_no_hang():
    assert launch(slow_to_connect, 2, backend="nccl", diagnose=True, timeout=100) == [1, 0]


def barrier(rank, n, device):
    dist.barrier()


def test_a_barrier_needs_no_warning(capfd):
    launch(barrier, 2, backend="nccl", timeout=100)
    assert "UserWarning" not in capfd.readouterr().err


def backend_and_device(rank, n, device):
    return dist.get_backend(), str(device)


@pytest.mark.parametrize(
    ("count", "n", "options", "expected"),
    [
        (2, 2, {}, ("nccl", "cuda:1")),
        (1, 2, {}, ("gloo", "cpu")),
        (1, 2, {"backend": "nccl"}, ("nccl", "cuda:0")),
        (2, 2, {"device": "cpu"}, ("gloo", "cpu")),
    ],
)
def test_nccl_is_the_default_where_each_rank_has_a_gpu(count, n, options, expected, gpus):
    gpus(count)
    assert launch(backend_and_device, n, timeout=100, **options)[1] == expected


def test_a_lesson_says_why_it_leaves_the_gpu_alone(gpus):
    gpus(1)
    lesson = [sys.executable, "lessons/barrier.py", "-n", "2"]
    done = subprocess.run(lesson, cwd=ROOT, capture_output=True, text=True, timeout=200)
    said = "gloo on cpu: 2 ranks, 1 GPU; --backend nccl shares it (NCCL 2.30 or newer)\n"
    assert (done.returncode, done.stderr.count(said)) == (0, 1), done.stderr


def result_of_each_kind(rank, n, device):
    frozen = torch.nn.Linear(2, 1).to(device).requires_grad_(False)
    leaf = torch.ones(2, device=device, requires_grad=True)
    return torch.nn.Linear(2, 1).to(device), frozen, leaf, leaf * 2


def test_what_comes_back_is_of_the_kind_that_it_was():
    model, frozen, leaf, product = launch(result_of_each_kind, 1, backend="nccl")[0]
    torch.optim.SGD(model.parameters(), lr=0.1)
    assert [type(one) for one in (*model.parameters(), *frozen.parameters())] == [
        torch.nn.Parameter
    ] * 4
    assert [one.requires_grad for one in (*model.parameters(), *frozen.parameters())] == [
        True,
        True,
        False,
        False,
    ]
    assert (leaf.is_leaf, leaf.requires_grad, leaf.device.type) == (True, True, "cpu")
    assert product.tolist() == [2.0, 2.0]
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize("nvml", ["0", "1"], ids=["without NVML", "with NVML"])
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_ranks_have_gpus_however_they_start_unless_they_are_forks(method, nvml, monkeypatch):
    """Without NVML the parent asks the driver how many GPUs there are, which no fork survives."""
    monkeypatch.setenv("REHEARSED_NVML", nvml)
    options = {"backend": "nccl", "start_method": method, "timeout": 100}
    if method == "fork":
        with pytest.raises(ValueError, match="a fork of this process may find no GPU"):
            launch(backend_and_device, 2, **options)
    else:
        assert launch(backend_and_device, 2, **options)[1] == ("nccl", "cuda:1")


def test_a_device_with_a_number_is_refused():
    with pytest.raises(ValueError, match="LOCAL_RANK"):
        availability.choose("nccl", "cuda:1", 1)
