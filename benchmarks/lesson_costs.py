"""What the lessons quote of the cost of a call and no `bench bus` shows: on gloo, on the CPU.

python benchmarks/lesson_costs.py
"""

import statistics
import time
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from in_turn import print_ratio

from collectives import launch

SIZES = (4096, 16 * 2**20)  # bytes
ROUNDS = 200
MESSAGES = 1000
TIMES = 30


def there_and_back(rank, world_size, device):
    """send_recv: the seconds of one message, by size: half of the fastest of many round trips."""
    fastest = dict.fromkeys(SIZES, float("inf"))
    for _ in range(ROUNDS):
        for size in SIZES:
            x = torch.zeros(size, dtype=torch.uint8)
            dist.barrier()
            start = time.perf_counter()
            if rank == 0:
                dist.send(x, dst=1)
                dist.recv(x, src=1)
            else:
                dist.recv(x, src=0)
                dist.send(x, dst=0)
            fastest[size] = min(fastest[size], (time.perf_counter() - start) / 2)
    return fastest


def many_messages(rank, world_size, device):
    """isend_irecv: 1,000 messages of 4 B, waiting after each, and starting all of them first."""
    start_one = dist.isend if rank == 0 else dist.irecv
    buffers = [torch.zeros(1) for _ in range(MESSAGES)]
    one_by_one, together = [], []
    for _ in range(5):
        dist.barrier()
        start = time.perf_counter()
        for buffer in buffers:
            start_one(buffer, 1 - rank).wait()
        one_by_one.append(time.perf_counter() - start)
        dist.barrier()
        start = time.perf_counter()
        for work in [start_one(buffer, 1 - rank) for buffer in buffers]:
            work.wait()
        together.append(time.perf_counter() - start)
    return one_by_one, together


def open_messages(rank, world_size, device, messages=8):
    """isend_irecv: by how much MiB this rank is larger while messages of 64 MiB are open, after
    their wait(), and without their works. Nobody else holds their tensors.
    """
    process, start_one = psutil.Process(), dist.isend if rank == 0 else dist.irecv
    dist.barrier()
    before = process.memory_info().rss
    works = [start_one(torch.ones(2**24), 1 - rank) for _ in range(messages)]
    sizes = [process.memory_info().rss]
    for work in works:
        work.wait()
    sizes.append(process.memory_info().rss)
    del works, work
    sizes.append(process.memory_info().rss)
    return [(size - before) / 2**20 for size in sizes]


def groups_and_barriers(rank, world_size, device):
    """new_group and barrier: the median seconds of four calls, in turn."""
    x, limit = torch.zeros(1), timedelta(seconds=30)
    calls = {
        "new_group": dist.new_group,
        "all_reduce": lambda: dist.all_reduce(x),
        "monitored_barrier": lambda: dist.monitored_barrier(timeout=limit),
        "barrier": dist.barrier,
    }
    seconds = {name: [] for name in calls}
    for _ in range(TIMES):
        for name, call in calls.items():
            dist.barrier()
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


if __name__ == "__main__":
    options = {"backend": "gloo", "device": "cpu", "timeout": 300.0, "diagnose": False}
    fastest, _ = launch(there_and_back, 2, **options)
    for size, seconds in fastest.items():
        print(f"{size:>9} bytes  {seconds * 1000:.3f} ms")
    one_by_one, together = launch(many_messages, 2, **options)[0]
    print_ratio(f"{MESSAGES} messages: wait after each, start all first", one_by_one, together)
    for rank, sizes in enumerate(launch(open_messages, 2, **options)):
        print(f"rank {rank}: open, waited for, dropped:", *(f"{size:.0f} MiB" for size in sizes))
    by_rank = launch(groups_and_barriers, 4, **options)
    for first, second in (("new_group", "all_reduce"), ("monitored_barrier", "barrier")):
        slowest = ([max(found[name] for found in by_rank)] for name in (first, second))
        print_ratio(f"{first}, {second}", *slowest)
