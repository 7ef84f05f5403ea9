"""Start a world of ranks on this machine, return their results, and leave no process behind."""

import multiprocessing
import time

from collectives.launcher import by_value, child, server
from collectives.launcher.launch_spec import LaunchSpec
from collectives.launcher.watch import LaunchWatch
from collectives.launcher.world import World

# What the ranks of a backend need, so that the fork server imports it once for all of them.
_MODULES = {name: (f"collectives.backends.{name}.group",) for name in ("mpi", "by_hand")}


def start(spec: LaunchSpec, calls: LaunchWatch | None = None) -> list:
    """Run the launch and return the results in rank order. Raises LaunchError if a rank fails.

    `calls` watches the calls that the ranks record; without it they record nothing.
    """
    deadline = time.monotonic() + spec.timeout
    payload = by_value.pickle_by_value(spec.fn, spec.args)
    if spec.start_method == "forkserver":
        server.start_server(_MODULES.get(spec.backend, ()))
    world = World(spec, payload, calls)
    try:
        world.start()
        return world.results(deadline)
    finally:
        world.end()


def kill_all() -> None:
    """Kill every rank that any thread of this process has started. Their launches then fail."""
    with child.starting:
        for process in multiprocessing.active_children():
            if process.name.startswith(child.NAME):
                process.kill()
