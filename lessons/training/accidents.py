"""What the lesson failover needs to kill a rank: torchrun, and a place at which a rank dies.

torchrun starts this file in each rank, with the arguments of `main`.
"""

import os
import pkgutil
import signal
import subprocess
import sys
import time
from itertools import count, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch
import torch.distributed as dist

# subtle: imported when there is a process group, it would keep the group alive
import torch.distributed.nn

from collectives import check_training
import one_process
from one_process import batch_loss, network, shuffled

BATCHES = shuffled().split(64)[:25]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def at_call(owner, name, number, action):
    """Inside, do something just before a function is called for the n-th time; never if n is 0."""
    function, calls = getattr(owner, name), count(1)

    def counted(*args, **kwargs):
        if next(calls) == number:
            action()
        return function(*args, **kwargs)

    return mock.patch.object(owner, name, counted)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def survive(device, victim, call, number):
    """Train with two ranks, of which one is killed before this call of a function ("os.fsync").

    Returns how many steps rank 0 began in each start. The end must be that of one process.
    """
    found = [None]
    if dist.get_rank() == 0:
        with TemporaryDirectory() as folder:
            found = [_survive(folder, victim, call, number)]
    dist.broadcast_object_list(found)
    steps, parts = found[0]
    model = network(1, device)
    trained = model, torch.optim.SGD(model.parameters())
    for one, part in zip(trained, parts, strict=True):
        one.load_state_dict(part)
    expected, _ = one_process.train(network(0, device), batch_loss, BATCHES, device)
    check_training(trained, expected, "one process")
    return steps


def _survive(folder, victim, call, number):
    start = [*TORCHRUN, "--max-restarts", "1", __file__, folder, str(victim), call, str(number)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    job = subprocess.Popen(start, env=environ, text=True, **pipes)
    try:
        _, said = job.communicate(timeout=130)  # less than the step has
    except subprocess.TimeoutExpired:
        job.terminate()  # torchrun ends its ranks
        _, said = job.communicate()
    if job.returncode != 0 or said.count("exitcode: -9") != 1:
        raise RuntimeError(f"torchrun ended with {job.returncode}: {said[-2000:]}")
    steps = [line.split() for line in Path(folder, "log").read_text().splitlines()]
    for (restart, before), (again, after) in pairwise(steps):
        if restart != again:  # on stderr: what stdout holds is the same in every run
            seconds = float(after) - float(before)
            print(f"{seconds:.1f} s from the last step to the next one", file=sys.stderr)
    restarts = [restart for restart, _ in steps]
    newest = max(Path(folder).glob("step-*.pt"))
    return (restarts.count("0"), restarts.count("1")), torch.load(newest)["parts"]


def main(folder, victim, call, number):
    import failover as lesson

    lesson.meet()
    rank, restart = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    if (restart, rank) == ("0", int(victim)):
        owner, _, name = call.rpartition(".")
        at_call(pkgutil.resolve_name(owner), name, int(number), kill).start()

    def noted(model, images, labels):
        if rank == 0:
            with Path(folder, "log").open("a") as log:
                log.write(f"{restart} {time.time()}\n")
        return lesson.on_my_shard(model, images, labels)

    trained, _ = lesson.train(network(0, "cpu"), noted, BATCHES, "cpu", folder)
    undisturbed, _ = lesson.train(network(0, "cpu"), lesson.on_my_shard, BATCHES, "cpu")
    check_training(trained, undisturbed, "failover", limit=0.0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
