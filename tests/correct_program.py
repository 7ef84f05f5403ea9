"""Correct programs, of which none may be suspected: python correct_program.py NAME, or under torchrun."""

import datetime
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def ddp(rank, n):
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    loss = torch.ones(1)
    dist.all_reduce(loss)


def functional(rank, n):
    import torch.distributed._functional_collectives as functional

    x = torch.ones(4) * rank
    for _ in range(10):
        x = functional.all_reduce(x, "sum", dist.group.WORLD) / n
        x = functional.all_gather_tensor(x, 0, dist.group.WORLD)[:4]
    dist.broadcast(x, 0)


def pipeline(rank, n):
    """Each rank works for a while, then passes on; the last ones wait long."""
    x = torch.ones(2)
    for _ in range(2):
        if rank > 0:
            dist.recv(x, rank - 1)
        time.sleep(0.4)
        if rank < n - 1:
            dist.send(x, rank + 1)


def workers(rank, n):
    """Rank 0 hands out work to whoever is free."""
    x = torch.zeros(1)
    if rank == 0:
        for _ in range(3 * (n - 1)):
            source = dist.recv(x)
            dist.send(x, source)
    else:
        for _ in range(3):
            dist.send(x, 0)
            dist.recv(x, 0)


def branches(rank, n):
    """Roots and others call from different lines; the main rank goes first."""
    x = torch.ones(3)
    for root in range(n):
        if rank == root:
            dist.broadcast(x, root)
        else:
            dist.broadcast(x, root)
    for _ in range(2):
        if rank:
            dist.barrier()
        time.sleep(0.05)
        if not rank:
            dist.barrier()
    for i in range(n):
        if rank == i:
            dist.all_reduce(x)
        else:
            dist.all_reduce(torch.zeros(3))


def groups(rank, n):
    """Groups that overlap, each at its own pace, and one that only its members make."""
    rows = [dist.new_group([one, (one + 1) % n]) for one in range(n)]
    x = torch.ones(3)
    for _ in range(3):
        for row in rows:
            if rank in dist.get_process_group_ranks(row) if row is not dist.GroupMember.NON_GROUP_MEMBER else False:
                dist.all_reduce(x, group=row)
    if rank < 2:
        own = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(x, group=own)
    dist.barrier()


def gives_up(rank, n):
    """A time limit that the program sets itself, and has a plan for."""
    doomed = dist.new_group(timeout=datetime.timedelta(seconds=1))
    try:
        dist.send(torch.ones(1), (rank + 1) % n, group=doomed)
        dist.recv(torch.ones(1), (rank - 1) % n, group=doomed)
    except RuntimeError:
        pass
    dist.barrier()


def overlapped(rank, n):
    works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(20)]
    time.sleep(0.1 * rank)
    for work in works:
        work.wait()
    pairs = [(dist.isend, (rank + 1) % n), (dist.irecv, (rank - 1) % n)]
    for work in dist.batch_isend_irecv([dist.P2POp(call, torch.ones(2), peer) for call, peer in pairs]):
        work.wait()


def many_calls(rank, n):
    """More calls than a log holds, faster than anyone reads."""
    x = torch.ones(1)
    for _ in range(12_000):
        dist.broadcast(x, 0)


def leaves_at_once(rank, n):
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    if rank == 1:
        sys.stdout.flush()
        os._exit(0)


def quiet_end(rank, n):
    """Nothing is destroyed at the end; ranks end at different times."""
    dist.all_reduce(torch.ones(1))
    time.sleep(0.3 * rank)


def body(rank, name, n, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=n)
    globals()[name](rank, n)
    if name != "quiet_end":
        dist.destroy_process_group()


if __name__ == "__main__":
    name, n = sys.argv[1], 4
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        globals()[name](dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(body, (name, n, f"{folder}/store"), nprocs=n, start_method=(sys.argv[2:] or ["fork"])[0])
