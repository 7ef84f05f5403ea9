"""What a launch costs, beside torch.multiprocessing.spawn; a lesson, beside `import torch`.

    python benchmarks/launch.py [ROUNDS]

The ranks of spawn import this file again, so it imports torch only where it is needed.
"""

import faulthandler
import os
import statistics
import tempfile
from pathlib import Path

from in_turn import LIMIT, in_turn, print_ratio, process, rounds

RANKS = 4
LESSON = str(Path(__file__).parents[1] / "lessons" / "broadcast.py")


def one_all_reduce(rank: int, world_size: int, device) -> None:
    import torch
    import torch.distributed as dist

    count = torch.ones(1)
    dist.all_reduce(count)
    assert count.item() == world_size


def spawned(rank: int, world_size: int, file: str) -> None:
    import torch.distributed as dist

    store = Path(file).as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    one_all_reduce(rank, world_size, "cpu")
    dist.destroy_process_group()


def own_memory(rank: int, world_size: int, device) -> int:
    """The bytes that only this rank uses (its unique set size), while all ranks are there."""
    import psutil
    import torch.distributed as dist

    one_all_reduce(rank, world_size, device)
    dist.barrier()
    own = psutil.Process().memory_full_info().uss
    dist.barrier()
    return own


def spawn(ranks: int = RANKS) -> None:
    import torch.multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(spawned, (ranks, str(Path(folder, "store"))), nprocs=ranks)


def main(rounds: int) -> None:
    from collectives import launch
    from collectives.backends.availability import rank_environment

    os.environ.update(rank_environment("gloo", RANKS))  # the ranks of spawn, too, bind to loopback
    faulthandler.dump_traceback_later(rounds * LIMIT, exit=True)
    launch(one_all_reduce, RANKS, backend="gloo")  # the first launch starts the server
    found = in_turn(
        rounds,
        {"spawn": spawn, "launch": lambda: launch(one_all_reduce, RANKS, backend="gloo")},
    )
    print_ratio(f"{RANKS} ranks: spawn, launch", found["spawn"], found["launch"])
    for method in ("spawn", "forkserver"):
        own = launch(own_memory, RANKS, backend="gloo", start_method=method)
        print(f"own memory of a rank by {method}: {statistics.median(own) / 2**20:.0f} MiB")
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), LESSON)
    found = in_turn(
        rounds,
        {
            "import": lambda: process("-c", "import torch"),
            "lesson": lambda: process(LESSON),
            "torchrun": lambda: process(*torchrun),
        },
    )
    print_ratio("lesson, import torch", found["lesson"], found["import"])
    print_ratio("lesson under torchrun, lesson", found["torchrun"], found["lesson"])


if __name__ == "__main__":
    main(rounds(5))
