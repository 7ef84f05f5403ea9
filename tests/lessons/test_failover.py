"""The training of the lesson `failover` survives a crash in any phase of a step.

(The lesson kills ranks, and so does tests/examples/test_train_ddp.py.)
"""

import contextlib
import functools
import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from collectives import check_training, launch
from collectives.course import files

FILE = files.find("training/failover")

# Before which call of which function a rank stops. While rank 0 saves, the others are a step ahead.
AHEAD = (torch.optim.SGD, "zero_grad", 11)
PHASES = {
    "load": [(torch, "load", 1), (dist, "broadcast_object_list", 1)],
    "forward": [(torch.nn.Sequential, "forward", 8)] * 2,
    "backward": [(torch.Tensor, "backward", 8)] * 2,
    "all_reduce": [(dist, "all_reduce", 38)] * 2,
    "step": [(torch.optim.SGD, "step", 8)] * 2,
    "write": [(os, "fsync", 2), AHEAD],
    "rename": [(Path, "replace", 2), AHEAD],
}


def crash():
    raise InterruptedError


def stop_and_continue(rank, world_size, device, phases):
    """Runs in a rank: how many steps are left after a crash in each phase."""
    lesson = files.load(FILE)
    batches = lesson.shuffled().split(64)[:12]
    train = functools.partial(lesson.train, backward=lesson.on_my_shard, device=device)
    expected, _ = train(lesson.network(0, device), batches=batches)
    found = {}
    for phase, accidents in phases.items():
        with tempfile.TemporaryDirectory() as folder:
            if phase == "load":
                train(lesson.network(0, device), batches=batches[:5], folder=folder)
            with lesson.at_call(*accidents[rank], crash), contextlib.suppress(InterruptedError):
                train(lesson.network(0, device), batches=batches, folder=folder)
            got, losses = train(lesson.network(1, device), batches=batches, folder=folder)
        check_training(got, expected, phase, limit=0.0)
        found[phase] = len(losses.values)
    return found


def test_after_a_crash_in_any_phase_the_training_continues_from_step_5_bit_for_bit():
    found = launch(stop_and_continue, 2, args=(PHASES,), backend="gloo", timeout=100.0)
    assert found == [dict.fromkeys(PHASES, 7)] * 2


def test_the_lesson_gives_the_signal_handler_back():
    assert launch(handler_after_a_step, 2, backend="gloo") == [True, True]


def handler_after_a_step(rank, world_size, device):
    before = signal.getsignal(signal.SIGTERM)
    files.load(FILE).failover(rank, world_size, device)
    return signal.getsignal(signal.SIGTERM) == before
