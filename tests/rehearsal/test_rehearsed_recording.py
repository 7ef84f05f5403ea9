"""What is noted of calls on GPUs: a batch has one Work, and a missing wait() is worth its hint."""

import torch
import torch.distributed as dist

from collectives import launch


def exchange(rank, n, device, waits):
    peer = 1 - rank
    x, got = torch.tensor([rank], device=device), torch.empty(1, device=device, dtype=torch.int64)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, got, peer)]
    )
    for work in works if waits else []:
        work.wait()
    del works
    torch.cuda.synchronize()
    return got.item() if waits else None


def test_a_batch_is_recorded_with_its_waits_and_what_it_brought():
    results = launch(exchange, 2, args=(True,), backend="nccl", record="tensors", timeout=100)
    calls = [call for call in results.calls if call.rank == 0]
    assert [(call.name, call.awaited) for call in calls] == [
        ("isend", None),
        ("irecv", None),
        ("wait", "isend"),
        ("wait", "irecv"),
    ]
    assert calls[1].after["tensor"].tolist() == [1]
    assert results.risky_calls == []


def test_a_batch_that_nobody_waits_for_is_noticed():
    results = launch(exchange, 2, args=(False,), backend="nccl", record="calls", timeout=100)
    noticed = [(risk.kind, risk.call.name) for risk in results.risky_calls if risk.call.rank == 0]
    assert noticed == [("unawaited", "isend"), ("unawaited", "irecv")]
