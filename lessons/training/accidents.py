"""What the lesson failover needs to kill a rank: torchrun, and a place at which a rank dies."""

import os
import subprocess
import sys
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
    program = Path(__file__).with_name("killed_training.py")
    start = [*TORCHRUN, "--max-restarts", "1", program, folder, str(victim), call, str(number)]
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
