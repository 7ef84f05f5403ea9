"""Correct programs. Diagnose must not report any of them.

python correct_program.py NAME...   # one after the other
"""

import contextlib
import datetime
import inspect
import os
import sys
import tempfile
import time

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def functional(rank, n):
    import torch.distributed._functional_collectives as functional

    x = torch.ones(4) * rank
    for _ in range(10):
        x = functional.all_reduce(x, "sum", dist.group.WORLD) / n
        x = functional.all_gather_single(x, 0, dist.group.WORLD)[:4]
    dist.broadcast(x, 0)


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
    """Overlapping groups, each at its own pace, and one that only its members create."""
    rows = [dist.new_group([one, (one + 1) % n]) for one in range(n)]
    x = torch.ones(3)
    for _ in range(3):
        for row in rows:
            if row is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.all_reduce(x, group=row)
    if rank < 2:
        own = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(x, group=own)
    dist.barrier()


def gives_up(rank, n):
    """The program sets a time limit itself and handles the error."""
    doomed = dist.new_group(timeout=datetime.timedelta(seconds=1))
    try:
        dist.send(torch.ones(1), (rank + 1) % n, group=doomed)
        dist.recv(torch.ones(1), (rank - 1) % n, group=doomed)
    except RuntimeError:
        pass
    dist.barrier()


def many_calls(rank, n):
    """More calls than a log holds, faster than anyone reads."""
    x = torch.ones(1)
    for _ in range(5_000):
        dist.broadcast(x, 0)


def one_group_is_busier(rank, n):
    """A rank makes more calls in one group than it tells of, and few in another before."""
    few, many = dist.new_group([0, 1]), dist.new_group([1, 2])
    for _ in range(60 if rank < 2 else 0):
        dist.all_reduce(torch.ones(1), group=few)
    for _ in range(600 if rank in (1, 2) else 0):
        dist.all_reduce(torch.ones(1), group=many)


def numbers_of_any_kind(rank, n):
    """Roots, peers, tags, ranks and splits as numpy and torch count them."""
    for root in (*numpy.arange(n), *torch.arange(n)):
        dist.broadcast(torch.ones(2), root)
    half = dist.new_group(list(numpy.arange(0, n, 2)))
    if rank % 2 == 0:
        dist.all_reduce(torch.ones(2), group=half)
    work = dist.isend(torch.ones(2), numpy.int64((rank + 1) % n), tag=numpy.int32(7))
    dist.recv(torch.ones(2), numpy.int64((rank - 1) % n), tag=7)
    work.wait()
    for step in range(2):
        counts = numpy.array([1 + (rank + other + step) % 3 for other in range(n)])
        there, here = torch.empty(counts.sum()), torch.ones(counts.sum())
        dist.all_to_all_single(there, here, counts, list(torch.tensor(counts)))


def waits_in_short_looks(rank, n):
    """A wait that times out is repeated."""
    for late in range(n):
        time.sleep(0.3 * (rank == late))
        work = dist.all_reduce(torch.ones(2), async_op=True)
        while True:
            with contextlib.suppress(RuntimeError):
                work.wait(datetime.timedelta(seconds=0.1))
                break


def leaves_at_once(rank, n):
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    if rank == 1:
        sys.stdout.flush()
        os._exit(0)


def other_order(rank, n):
    """Some Works are waited for out of order, some are polled, some have a callback, some are
    dropped.
    """
    tensors = [torch.ones(10) for _ in range(6)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]  # some are dropped
    for i in (3, 1, 0) if rank else (0, 2):
        works[i].wait()
    while not works[4].is_completed():
        time.sleep(0.001)
    works[5].get_future().then(lambda done: None).wait()


def objects(rank, n):
    """Objects of different types on each rank, tensors among them."""
    mine = [torch.ones(rank + 1), torch.ones(2, dtype=torch.int64), "text", None][rank % 4]
    dist.all_gather_object([None] * n, mine)
    dist.gather_object(mine, [None] * n if rank == 0 else None)
    dist.broadcast_object_list([torch.ones(3)] if rank == 0 else [None])
    dist.scatter_object_list([None], [torch.ones(i) for i in range(n)] if rank == 0 else None)
    if rank == 0:
        dist.send_object_list([mine], 1)
    elif rank == 1:
        dist.recv_object_list([None], 0)


def barriers(rank, n):
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))
    time.sleep(0.1 * rank)
    dist.monitored_barrier()
    dist.barrier(async_op=True).wait()


def nodes_and_leaders(rank, n):
    """Reduce in each node, then among the leaders, then broadcast in the node."""
    node, _ = dist.new_subgroups(2)
    leaders = dist.new_group(range(0, n, 2))
    x = torch.ones(3)
    for _ in range(3):
        dist.reduce(x, rank // 2 * 2, group=node)
        if rank % 2 == 0:
            dist.all_reduce(x, group=leaders)
        dist.broadcast(x, group_src=0, group=node)


def groups_in_threads(rank, n):
    """Each thread has its own group of all ranks, so that calls of different threads may come in
    any order.
    """
    import threading

    groups = [dist.new_group() for _ in range(3)]

    def work(i):
        for _ in range(5):
            time.sleep(0.01 * ((rank + i) % 3))
            dist.all_reduce(torch.ones(i + 1), group=groups[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def groups_in_any_order(rank, n):
    """Two groups of the same ranks do not wait for each other."""
    first, second = dist.new_group(), dist.new_group()
    x, y = torch.ones(2), torch.ones(3)
    order = [(x, first), (y, second)] if rank % 2 else [(y, second), (x, first)]
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in order]:
        work.wait()


def requests(rank, n):
    """Rank 0 serves whoever asks, until all have said goodbye by another tag."""
    x = torch.zeros(2)
    if rank:
        for _ in range(rank):
            dist.send(x, 0, tag=1)
            dist.recv(x, 0, tag=2)
        dist.send(x[:1], 0, tag=3)
    else:
        for _ in range(sum(range(n))):
            dist.send(x, dist.recv(x, tag=1), tag=2)
        for _ in range(n - 1):
            dist.recv(x[:1], tag=3)


def begins_again(rank, n):
    """One world after another in the same processes, with other groups in each."""
    with tempfile.TemporaryDirectory() as own:
        places = [own]
        dist.broadcast_object_list(places)
        for world in range(2):
            dist.destroy_process_group()
            dist.init_process_group(
                "gloo", init_method=f"file://{places[0]}/{world}", rank=rank, world_size=n
            )
            for group in [dist.new_group([rank]) for rank in range(n)][rank : rank + 1]:
                dist.all_reduce(torch.ones(1 + rank + world), group=group)
            dist.all_reduce(torch.ones(2 + world))
        dist.barrier()


def refused(rank, n):
    """Some ranks make calls that torch refuses before it sends anything."""
    if rank == 0:
        for call in (
            lambda: dist.all_reduce("text"),
            lambda: dist.all_gather([torch.ones(1)], torch.ones(1)),
            lambda: dist.broadcast(torch.ones(1), n + 7),
            lambda: dist.send(torch.ones(1), rank),
            lambda: dist.scatter(torch.ones(1), None, 0),
            lambda: dist.new_group([n + 5]),
        ):
            try:
                call()
            except (ValueError, TypeError, RuntimeError):
                pass
            else:
                raise AssertionError
    dist.all_reduce(torch.ones(2))


def forks(rank, n):
    """Children that do not take part in the world, forked between its calls."""
    for _ in range(2):
        if (child := os.fork()) == 0:
            dist.is_initialized()
            os._exit(0)
        dist.all_reduce(torch.ones(2))
        os.waitpid(child, 0)


def alone_in_the_world(rank, n):
    """Each process has its own world of one rank."""
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for _ in range(rank + 1):
        dist.all_reduce(torch.ones(rank + 1))


def ensembles(rank, n):
    """Two worlds of half the ranks each, at once."""
    with tempfile.TemporaryDirectory() as own:
        places = [own]
        dist.broadcast_object_list(places)
        dist.destroy_process_group()
        half, own_rank = divmod(rank, n // 2)
        dist.init_process_group(
            "gloo", init_method=f"file://{places[0]}/{half}", rank=own_rank, world_size=n // 2
        )
        for _ in range(half + 1):
            dist.all_reduce(torch.ones(half + 1))
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo", init_method=f"file://{places[0]}/all", rank=rank, world_size=n
        )
        dist.barrier()


def into_tensors(rank, n):
    x = torch.ones(3)
    dist.all_gather_single(whole := torch.empty(3 * n), x)
    dist.reduce_scatter_single(x, whole)
    dist.all_gather([torch.empty(3) for _ in range(n)], x)
    dist.all_reduce(x.view(3, 1) if rank else x)
    dist.all_reduce(torch.tensor(1 + 1j))


def thinks_better_of_it(rank, n):
    """sys.exit is called and caught, as when a command-line tool is used as a function."""
    for _ in range(2):
        dist.barrier()
        with contextlib.suppress(SystemExit):
            sys.exit(rank)


def some_leave_early(rank, n):
    """The first half goes on without the others."""
    half = dist.new_group(range(n // 2))
    if rank < n // 2:
        for _ in range(5):
            dist.all_reduce(torch.ones(1), group=half)
            time.sleep(0.2)


def loads_data_in_workers(rank, n):
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    data = TensorDataset(torch.arange(12.0).reshape(12, 1))
    for (batch,) in DataLoader(data, 1, sampler=DistributedSampler(data), num_workers=2):
        dist.all_reduce(batch)


def differentiates_through(rank, n):
    import torch.distributed.nn.functional as differentiable

    x = torch.ones(2, requires_grad=True)
    y = differentiable.all_reduce(x * (rank + 1))
    sum(differentiable.all_gather(y)).sum().backward()


def saves_in_the_background(rank, n):
    import torch.distributed.checkpoint as checkpoint

    with tempfile.TemporaryDirectory() as own:
        places = [own]
        dist.broadcast_object_list(places)
        other = dist.new_group()  # the background thread's own
        state = {"weight": torch.ones(4)}
        checkpoint.async_save(state, checkpoint_id=places[0], process_group=other).result()
        dist.barrier()


# These start or end worlds and processes themselves.
WHOLE = [leaves_at_once, thinks_better_of_it, begins_again, alone_in_the_world, ensembles, forks]


def steps():
    """The programs that run in an existing world."""
    return [
        one
        for one in globals().values()
        if inspect.isfunction(one)
        and [*inspect.signature(one).parameters] == ["rank", "n"]
        and one not in WHOLE
    ]


def main(rank, names, n, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=n)
    for name in names:
        globals()[name](rank, n)
    if name != "thinks_better_of_it":
        dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(main, (sys.argv[1:], 4, f"{folder}/store"), 4, start_method="fork")
