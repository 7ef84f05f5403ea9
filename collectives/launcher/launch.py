"""`launch`: call a function in each rank of a world, started here or by a launcher, as torchrun."""

import math
import multiprocessing
import sys
from collections.abc import Callable

from collectives.backends import availability as backends
from collectives.launcher.place import launcher_place


def launch(
    fn: Callable,
    nproc: int | None = None,
    *,
    args: tuple = (),
    backend: str | None = None,
    device: str | None = None,
    timeout: float = 60.0,
    start_method: str | None = None,
    diagnose: bool | None = None,
) -> list:
    """Call `fn(rank, world_size, device, *args)` in every rank; return the results in rank order.

    A direct worker of torchrun, mpiexec or srun joins the launcher's world: every rank must call
    `launch`, and every rank gets the full list. If the caller has initialised a process group, it
    is used and left alone. Any other process starts `nproc` ranks (default: 4) on this machine and
    ends them. `fn`, `args` and the results are pickled by value; tensors come back on the CPU.

    `backend=None` means NCCL if every rank can have a GPU, else gloo on the CPU. `timeout` is in
    seconds, for the whole call. `start_method` is multiprocessing's (default: forkserver, or spawn
    where there is no fork server).

    The ranks record their calls, and on a timeout the error says which rank did not join which
    call. With `diagnose=True` the calls are compared while the ranks run: if they do not match, or
    if ranks wait for each other in a circle, the world ends at once, even if the results would have
    come. False: no recording. (In a launcher's world use `collectives diagnose -- torchrun ...`.)

    Raises ValueError for arguments that cannot work, and LaunchError, which names the rank, if a
    rank raises, dies or hangs.
    """
    _check(fn, nproc, args, timeout, start_method)
    place = launcher_place()
    if place is not None:
        return _join(place, nproc, fn, args, backend, device, timeout)
    return _start(fn, nproc, args, backend, device, timeout, start_method, diagnose)


def _join(place, nproc, fn, args, backend, device, timeout) -> list:
    from collectives.launcher import join

    if nproc not in (None, place.world_size):
        raise ValueError(
            f"nproc={nproc}, but {place.launcher} started {place.world_size} ranks: "
            "leave nproc out."
        )
    return join.join(place, fn, args, backend, device, timeout)


def _start(fn, nproc, args, backend, device, timeout, start_method, diagnose) -> list:
    from collectives.launcher import start
    from collectives.launcher.launch_spec import LaunchSpec
    from collectives.launcher.server import default_start_method
    from collectives.launcher.watch import LaunchWatch

    nproc = 4 if nproc is None else nproc
    backend, device = backends.choose(backend, device, nproc)
    method = start_method or default_start_method()
    calls = None if diagnose is False else LaunchWatch(at_once=diagnose is True)
    spec = LaunchSpec(fn, nproc, args, backend, device, float(timeout), method)
    return start.start(spec, calls)


def _check(fn, nproc, args, timeout, start_method) -> None:
    if not callable(fn):
        raise ValueError(
            f"fn={fn!r} cannot be called: pass a function of (rank, world_size, device)."
        )
    if nproc is not None and (isinstance(nproc, bool) or not isinstance(nproc, int) or nproc < 1):
        raise ValueError(f"nproc={nproc!r} is not a number of ranks: use a whole number from 1.")
    if not isinstance(args, tuple | list):
        raise ValueError(f"args={args!r} is not a tuple: write args=({args!r},).")
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout < math.inf:
        raise ValueError(f"timeout={timeout!r} is not a time limit: use seconds, more than 0.")
    methods = multiprocessing.get_all_start_methods()
    if start_method is not None and start_method not in methods:
        raise ValueError(
            f"start_method={start_method!r} is not known here: use one of {', '.join(methods)}."
        )
    ranks = sys.modules.get("collectives.launcher.rank")
    if ranks is not None and ranks.inside:
        raise RuntimeError(
            "launch was called inside a rank: call it from the program that is to start the ranks, "
            "not from them."
        )
