"""Start a world of ranks on this machine, return their results, and leave no process behind."""

import multiprocessing
import time
from typing import Any

from collectives.launcher import by_value, child
from collectives.launcher.launch_spec import LaunchSpec
from collectives.launcher.watch import LaunchWatch
from collectives.launcher.world import World


def start(spec: LaunchSpec, calls: LaunchWatch | None = None) -> list[Any]:
    """Run the launch and return the results in rank order. Raises LaunchError if a rank fails.

    `calls` watches the calls that the ranks record; without it they record nothing.
    """
    deadline = time.monotonic() + spec.timeout
    payload = by_value.pickle_by_value(spec.fn, spec.args)
    world = World(spec, calls)
    try:
        world.start(payload)
        return world.results(deadline)
    finally:
        world.end()


def kill_all() -> None:
    """Kill every rank that any thread of this process has started. Their launches then fail."""
    with child.starting:
        for process in multiprocessing.active_children():
            if process.name.startswith(child.NAME):
                process.kill()
