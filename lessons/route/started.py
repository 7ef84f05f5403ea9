"""Run a program of examples/route in the ranks of a step, as torchrun would run it."""

import contextlib
import functools
import io
import itertools
import json
import os
import re
import sys
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from collectives import counting

PROGRAMS = Path(__file__).parents[2] / "examples" / "route"
_starts = itertools.count()


def started(program, *changes, alone=False, folder=".", workers=0):
    """What the ranks print and call: of each, in rank order, a dict by name.

    A printed name, such as "loss", has a list of its numbers. "calls" says how often a call reached
    the process group, also if DDP made it. "raised" is the error with which the program ended.

    Each of the `changes` is a pair: words that stand once in the program, and those in their place.
    In the first, " ... " stands for all that is between.
    `alone`: every rank runs it in a world of its own. `folder`: where it runs. `workers`: of each
    loader; without any it is quicker here, where the images are in memory.
    """
    text = (PROGRAMS / program).read_text("utf-8")
    text = re.sub(r"(num_workers=|workers.*default=)1", rf"\g<1>{workers}", text)
    for old, new in changes:
        pattern = ".*?".join(map(re.escape, old.split(" ... ")))
        text, count = re.subn(pattern, lambda _, new=new: new, text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{program} has {count} times: {old}")
    own = os.environ["RANK"]
    rank, n = (0, 1) if alone else (int(own), int(os.environ["WORLD_SIZE"]))
    # subtle: torchrun makes a store for each start. Here one store is for all starts of a step.
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    place = f"start {next(_starts)} of {own if alone else 'all'}"
    where = {"store": dist.PrefixStore(place, store), "rank": rank, "world_size": n}
    meet = functools.partial(dist.init_process_group, **where)
    torch.set_num_threads(1)  # as torchrun asks for by OMP_NUM_THREADS
    printed, raised = io.StringIO(), ""
    with (
        patch.object(dist, "init_process_group", meet),
        patch.dict(os.environ, {"LOCAL_WORLD_SIZE": str(n), "LOCAL_RANK": str(rank)}),
        patch.object(sys, "argv", [program]),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(printed),
        counting() as counts,
    ):
        try:
            exec(compile(text, program, "exec"), {"__name__": "__main__"})
        except RuntimeError as error:
            raised = str(error).splitlines()[0]
    if raised:  # subtle: only now, when the error no longer keeps a DDP model alive
        dist.destroy_process_group()
    calls = {name.removeprefix("c10d."): count.calls for name, count in counts.items()}
    mine = _numbers(printed.getvalue()) | {"calls": calls, "raised": raised}
    store.set(f"{place}: {rank}", json.dumps(mine))
    return [json.loads(store.get(f"{place}: {one}")) for one in range(n)]


def _numbers(printed):
    """Those behind the colon of a line such as "rank 0, epoch 1: loss 0.5, weights 2.0"."""
    found = {}
    for line in printed.splitlines():
        for name, number in re.findall(r"(\w+) (-?\d+(?:\.\d+)?)", line.partition(": ")[2]):
            found.setdefault(name, []).append(float(number) if "." in number else int(number))
    return found
