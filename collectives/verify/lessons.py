"""Run lessons in a world, and say which of them are at fault there."""

import functools

import torch
import torch.distributed as dist

from collectives.backends import claims
from collectives.course import files
from collectives.course.marks import world_of
from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch_in
from collectives.launcher.world import World
from collectives.semantics.check_training import check_training
from collectives.semantics.probe import Silence

# In seconds, for each lesson.
TIMEOUT = 100.0


def run_lessons(rank, world_size, device, names, backend, limit, silence):
    """Runs in a rank: these lessons in one world. An error names its step in a note."""
    for name in names:
        if name != names[0]:
            # A receive from any rank must not take what the next lesson sends. On gloo a barrier
            # may raise the error of an earlier call, which error_at_wait makes on purpose. A lesson
            # by itself goes without, and so is not at fault for an all_reduce that it never makes.
            dist.all_reduce(torch.zeros(1, device=device))
        for step in runnable(name, backend, device.type, world_size):
            step.__globals__["check_training"] = functools.partial(check_training, limit=limit)
            try:
                step(rank, world_size, device)
            except Exception as error:
                error.add_note(f"in step {step.__name__} of {name}")
                raise


def runnable(lesson, backend, device, world_size):
    """The steps that this world can run. Others start worlds of their own, of whatever size this
    one has: see test_notebooks.py.
    """
    return [
        step
        for step in files.load(files.find(lesson)).STEPS
        for world in [world_of(step)]
        if not world.isolated
        and not world.seconds
        and world.ranks <= world_size
        and world.backend in (None, backend)
        and not claims.refusal(step.__name__, backend, device)
    ]


def faults_of(names, backend, device, world_size, limit=1e-9) -> dict[str, str]:
    """What is wrong with which of these lessons. The diagnosis, which watches, suspects none.

    All run in one world. If one fails there, each runs by itself, to name all that fail.
    """

    def fault(names):
        world = World.chosen(world_size, backend, device, TIMEOUT * len(names))
        try:
            launch_in(world, run_lessons, (names, backend, limit, Silence()), diagnose=True)
        except LaunchError as error:
            return str(error)

    together = fault(names)
    each = {name: fault([name]) for name in names} if together else {}
    found = {name: text for name, text in each.items() if text}
    return found or ({"together": together} if together else {})
