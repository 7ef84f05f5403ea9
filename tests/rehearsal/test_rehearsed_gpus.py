"""What the rehearsal plays: a GPU's devices and memory, calls that do not block, and NCCL's refusals."""

import json
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from processes import finished

from collectives import LaunchError, launch

NCCL = {"backend": "nccl", "timeout": 100}


def where(rank, n, device):
    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    return str(device), torch.cuda.current_device(), x.item()


def test_the_ranks_of_the_fork_server_have_a_gpu_each():
    assert launch(where, 2, **NCCL) == [("cuda:0", 0, 2.0), ("cuda:1", 1, 2.0)]
    assert not torch.cuda.is_initialized()


PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
x = torch.ones(1, device=f"cuda:{dist.get_rank()}")
dist.all_reduce(x)
print(f"the sum is {x.item():g}", flush=True)
dist.destroy_process_group()
"""


def test_a_program_under_diagnosis_has_the_gpus_too(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    diagnose = [
        sys.executable,
        "-m",
        "collectives",
        "diagnose",
        "--json",
        tmp_path / "verdict.json",
    ]
    environ = {"CUDA_VISIBLE_DEVICES": "1,3"}
    done = finished([*diagnose, "--", *torchrun, tmp_path / "program.py"], env=environ)
    assert done.stdout.count("the sum is 2") == 2, done.stderr
    assert json.loads((tmp_path / "verdict.json").read_text())["verdict"] == "ok"


def count_and_ordinal(rank, n, device):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(1, device=f"cuda:{torch.cuda.device_count()}")
    return torch.cuda.device_count()


@pytest.mark.parametrize(("visible", "count"), [(None, 2), ("1", 1), ("1,7", 1)])
def test_gpus_that_are_hidden_do_not_exist(visible, count, monkeypatch, gpus):
    gpus(2)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert launch(count_and_ordinal, 1, **NCCL) == [count]


def on_one_gpu(rank, n, device):
    torch.manual_seed(0)
    numbers = torch.rand(3), torch.rand(3, device=device).cpu()
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, device=device) + torch.ones(2)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(3, device=device, generator=torch.Generator())
    norm = torch.nn.BatchNorm1d(2).to(device)
    norm(torch.ones(4, 2, device=device))
    return {
        "numbers differ": not torch.equal(*numbers),
        "empty is not zero": bool(torch.empty(4, device=device).any()),
        "pinned": torch.ones(2).pin_memory().is_pinned(),
        "a number of the CPU may take part": (
            torch.ones(2, device=device) * torch.tensor(2.0)
        ).tolist(),
        "running mean": norm.running_mean.tolist(),
    }


def test_one_gpu():
    assert launch(on_one_gpu, 1, **NCCL)[0] == {
        "numbers differ": True,
        "empty is not zero": True,
        "pinned": True,
        "a number of the CPU may take part": [2.0, 2.0],
        "running mean": [pytest.approx(0.1)] * 2,
    }


def before_wait(rank, n, device):
    x = torch.ones(2, device=device)
    work = dist.all_reduce(x, async_op=True)
    try:
        x.sum()
        return "nothing noticed it"
    except RuntimeError as error:
        work.wait()
        return str(error).partition("\n")[0], x.tolist()


def test_memory_in_flight_is_not_to_be_touched():
    race = "RACE (rehearsed): aten::sum.IntList_out reads memory of all_reduce, which is in flight: no wait() before it"
    (text, values), _ = launch(before_wait, 2, **NCCL)
    assert (text.replace("aten::sum.dim_IntList", "aten::sum.IntList_out"), values) == (
        race,
        [2.0, 2.0],
    )


def in_a_batch(rank, n, device):
    peer, sent, got = (
        1 - rank,
        torch.tensor([rank], device=device),
        torch.empty(1, device=device, dtype=torch.long),
    )
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, got, peer)]
    )
    for work in works:
        work.wait()
    return len(works), got.item()


def test_a_batch_has_one_work():
    assert launch(in_a_batch, 2, **NCCL) == [(1, 1), (1, 0)]


def refused(rank, n, device):
    """By the name of a case, what NCCL says to it."""

    def ones(dtype=torch.float32):
        return torch.ones(4, 4, device=device, dtype=dtype)

    cases = {
        "a tensor of the CPU": lambda: dist.all_reduce(torch.ones(1)),
        "int16": lambda: dist.broadcast(ones(torch.int16), 0),
        "gaps": lambda: dist.all_reduce(ones()[:, 0]),
        "BAND": lambda: dist.all_reduce(ones(torch.int64), dist.ReduceOp.BAND),
        "AVG of bool": lambda: dist.all_reduce(ones(torch.bool), dist.ReduceOp.AVG),
        "from any source": lambda: dist.recv(ones()),
    }
    found = {}
    for name, call in cases.items():
        try:
            call()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
    return found


def test_what_nccl_refuses():
    assert launch(refused, 1, **NCCL)[0] == {
        "a tensor of the CPU": "RuntimeError: No backend type associated with device type cpu",
        "int16": "TypeError: Input tensor data type is not supported for NCCL process group: Short",
        "gaps": "ValueError: Tensors must be contiguous",
        "BAND": "ValueError: Cannot use ReduceOp.BAND with NCCL",
        "AVG of bool": "TypeError: Cannot use ReduceOp.AVG with boolean inputs",
        "from any source": "RuntimeError: ProcessGroupNCCL does not support recvAnysource",
    }


def all_on_gpu_0(rank, n, device):
    torch.cuda.set_device(0)
    dist.all_reduce(torch.ones(1, device="cuda"))


def test_two_ranks_on_one_gpu_are_refused_unless_they_ask():
    with pytest.raises(
        LaunchError, match="Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0"
    ):
        launch(all_on_gpu_0, 2, **NCCL)


def alone(rank, n, device):
    group = dist.new_group(timeout=timedelta(seconds=2))
    x = torch.ones(1, device=device)
    dist.all_reduce(x, group=group)
    if rank == 0:
        dist.all_reduce(x, group=group)
    return x.item()


def test_the_watchdog_ends_a_rank_whose_call_takes_too_long(capfd):
    with pytest.raises(LaunchError, match=r"rank 0 died.*SIGABRT"):
        launch(alone, 2, **NCCL)
    assert "Watchdog caught collective operation timeout: all_reduce" in capfd.readouterr().err


def normalized(norm, device, x):
    """Output, gradients and statistics of a batch norm: each a sum over ranks, or rows of its own."""
    norm, x = norm.double().to(device), x.to(device).requires_grad_()
    (output := norm(x)).pow(3).sum().backward()
    sums = [norm.weight.grad, norm.bias.grad]
    return [output.detach(), x.grad], sums, [norm.running_mean, norm.running_var]


def sync_batch_norm(rank, n, device):
    images = torch.randn(7, 3, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    sizes = [5, 2]  # shards of unequal size
    rows, sums, buffers = normalized(torch.nn.SyncBatchNorm(3), device, images.split(sizes)[rank])
    for one in sums:
        dist.all_reduce(one)
    whole, *others = normalized(torch.nn.BatchNorm2d(3), "cpu", images)
    right = [one.split(sizes)[rank] for one in whole] + others[0] + others[1]
    torch.testing.assert_close([one.cpu() for one in [*rows, *sums, *buffers]], right)


def test_sync_batch_norm_of_two_ranks_is_the_batch_norm_of_one_process():
    launch(sync_batch_norm, 2, **NCCL)
