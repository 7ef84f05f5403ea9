"""Programs that hang while a helper process of them lives. The first argument says how."""

import os
import subprocess
import sys
import time

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def join(rank=None, size=None):
    import torch.distributed as dist

    if rank is None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=size)  # join
    return rank


def reduce():
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(4))  # reduce


def barrier():
    import torch.distributed as dist

    dist.barrier()


def receive(source):
    import torch
    import torch.distributed as dist

    dist.recv(torch.ones(1), src=source)


def workers_of_a_loader():
    """Rank 1 leaves its loop early, and its workers go on."""
    from torch.utils.data import DataLoader

    rank = join()
    batches = DataLoader(range(8), num_workers=2, persistent_workers=True)
    for number, _ in enumerate(batches):
        if rank == 1 and number == 3:
            break
        reduce()
    if rank == 1:
        barrier()  # left early


def an_orphan():
    """Rank 1 ends well before it joins; what it started inherited its number."""
    if os.environ["RANK"] == "1":
        subprocess.Popen(SLEEP)
        sys.exit(0)
    join()


def a_server_of_logs():
    """The world is larger than the number of ranks that are started."""
    subprocess.Popen([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"])
    join(int(os.environ["RANK"]), 3)


def a_logger_of_the_launcher():
    import multiprocessing

    import torch.multiprocessing as mp

    queue = multiprocessing.get_context("spawn").SimpleQueue()
    logger = multiprocessing.get_context("spawn").Process(target=_listen, args=(queue,))
    logger.daemon = True
    logger.start()
    mp.spawn(_joins_three, nprocs=2)


def _listen(queue):
    while True:
        queue.get()


def _joins_three(rank):
    join(rank, 3)


def a_forked_child():
    """Rank 0 forks; rank 1 waits for a message that nobody sends."""
    rank = join()
    if rank == 0 and os.fork() == 0:
        time.sleep(600)
    if rank == 1:
        receive(0)  # nobody sends
    reduce()


def workers_of_the_compiler():
    rank = join()
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.warm_pool()
    barrier() if rank == 1 else reduce()


def a_resource_tracker():
    from multiprocessing import resource_tracker, shared_memory

    memory = shared_memory.SharedMemory(create=True, size=16)
    resource_tracker.ensure_running()
    try:
        if os.environ["RANK"] == "1":
            sys.exit(0)
        join()
    finally:
        memory.close()


def a_pool_of_the_launcher():
    """mp.spawn starts two of three ranks."""
    import multiprocessing

    import torch.multiprocessing as mp

    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(abs, [-1, 2]) == [1, 2]
        mp.spawn(_joins_three, nprocs=2)


def a_process_that_counts():
    """A process of multiprocessing, started by rank 0 after it joined."""
    import multiprocessing

    rank = join()
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()
    reduce()
    if rank == 1:
        receive(0)  # nobody sends
    reduce()


def a_rank_that_is_not_started():
    """A shell started ranks 0 and 2 of three, and beside them a helper."""
    join()


def a_child_of_a_rank_that_ended():
    """Rank 1 imports torch, starts a Python process, and leaves."""
    if os.environ["RANK"] == "1":
        code = "import time, torch.distributed; time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code])
        time.sleep(6)
        sys.exit(0)
    join()


def after_a_restart():
    """The first attempt fails; in the second, rank 0 makes a call too many."""
    subprocess.Popen(SLEEP)
    rank = join()
    reduce()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if rank == 1:
            raise ValueError("a bad batch")
        reduce()
    if rank == 0:
        receive(1)  # nobody sends
    reduce()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
