"""What it costs to record a call for the diagnosis, in CPU microseconds of the rank's thread.

    python benchmarks/recorded_call.py [ROUNDS]

The best batch of each side counts: a busy machine can only add time.
"""

import time

import torch
import torch.distributed as dist
from in_turn import rounds

from collectives import launch

CALLS, BATCHES = 200, 20


def all_reduce(rank: int, world_size: int, device) -> float:
    """One rank waits for nobody."""
    x = torch.ones(4)
    return best(lambda: dist.all_reduce(x), 1)


def exchange(rank: int, world_size: int, device) -> float:
    sent, received = torch.ones(4), torch.ones(4)

    def four_calls():
        for work in [dist.isend(sent, 1 - rank), dist.irecv(received, 1 - rank)]:
            work.wait()

    return best(four_calls, 4)


def best(run, calls: int) -> float:
    """Microseconds of a call in the fastest batch; `run` makes so many of them."""
    batches = []
    for _ in range(BATCHES):
        begin = time.thread_time()
        for _ in range(CALLS):
            run()
        batches.append((time.thread_time() - begin) / CALLS / calls * 1e6)
    return min(batches)


def main(rounds: int) -> None:
    for step, ranks in ((all_reduce, 1), (exchange, 2)):
        plain, recorded = (
            min(launch(step, ranks, backend="gloo", diagnose=diagnose)[0] for _ in range(rounds))
            for diagnose in (False, True)
        )
        print(
            f"{step.__name__}, {ranks} ranks: recorded {recorded:.1f} us, plain {plain:.1f} us, "
            f"{recorded - plain:.1f} us more"
        )


if __name__ == "__main__":
    main(rounds(5))
