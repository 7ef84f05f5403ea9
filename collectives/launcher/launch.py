"""One world, four front doors: join the world that torchrun or mpiexec started, or start one; bring its results back."""

import math
import multiprocessing
import sys
from collections.abc import Callable


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
    """Call `fn(rank, world_size, device, *args)` in every rank of a world; return the ranks' results in rank order.

    In a direct worker of torchrun or mpiexec the world is theirs: every rank calls `launch`, and every rank gets the full list. A
    process group that the caller initialised is used and left alone. Anywhere else `launch` starts `nproc` ranks (4 unless said
    otherwise) on this machine and ends them. `fn`, `args` and the results travel by value; tensors come back on the CPU.

    `backend=None` means NCCL where every rank can have a GPU, else gloo on the CPU. `timeout` is in seconds, for the whole call.
    `start_method` is one of multiprocessing's: forkserver where there is one, else spawn.

    The ranks' calls are noted, and when time is up the error says which rank did not join which call. With `diagnose=True` they are
    compared from the start: ranks that wait for each other in a circle, or whose calls do not fit, end the world at once, even
    where the results would have come. False: nothing is noted. (In a launcher's world, use `collectives diagnose -- torchrun ...`.)

    Raises ValueError for arguments that cannot work, and LaunchError, which names the rank, when the world does not return.
    """
    from collectives.backends import availability as backends
    from collectives.launcher import place as world

    _check(fn, nproc, args, timeout, start_method)
    ranks = sys.modules.get("collectives.launcher.rank")
    if ranks is not None and ranks.inside:
        raise RuntimeError(
            "launch was called inside a rank: call it from the program that is to start the ranks, not from them."
        )
    if (place := world.joined()) is not None:
        from collectives.launcher import join

        if nproc not in (None, place.world_size):
            raise ValueError(
                f"nproc={nproc}, but {place.launcher} started {place.world_size} ranks: leave nproc out."
            )
        return join.join(place, fn, args, backend, device, timeout)

    from collectives.launcher import start
    from collectives.launcher.watch import LaunchWatch

    nproc = 4 if nproc is None else nproc
    backend, device = backends.choose(backend, device, nproc)
    method = start_method or start.default_start_method()
    calls = None if diagnose is False else LaunchWatch(at_once=diagnose is True)
    return start.start(fn, nproc, args, backend, device, float(timeout), method, calls=calls)


def _check(fn, nproc, args, timeout, start_method) -> None:
    if not callable(fn):
        raise ValueError(
            f"fn={fn!r} cannot be called: pass a function of (rank, world_size, device)."
        )
    if nproc is not None and (isinstance(nproc, bool) or not isinstance(nproc, int) or nproc < 1):
        raise ValueError(f"nproc={nproc!r} is not a number of ranks: use a whole number from 1.")
    if not isinstance(args, tuple | list):
        raise ValueError(f"args={args!r} is not a tuple: write args=({args!r},).")
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not 0 < timeout < math.inf
    ):
        raise ValueError(f"timeout={timeout!r} is not a time limit: use seconds, more than 0.")
    methods = multiprocessing.get_all_start_methods()
    if start_method is not None and start_method not in methods:
        raise ValueError(
            f"start_method={start_method!r} is not known here: use one of {', '.join(methods)}."
        )
