"""`launch`: call a function in each rank of a world, started here or by a launcher, as torchrun."""

import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

from collectives.launcher.call_record import KINDS, Results
from collectives.launcher.world import World


def launch(
    fn: Callable[..., Any],
    nproc: int | None = None,
    *,
    args: tuple[Any, ...] = (),
    backend: str | None = None,
    device: str | None = None,
    timeout: float = 60.0,
    start_method: str | None = None,
    diagnose: bool | None = None,
    record: str | None = None,
) -> Results:
    """Call `fn(rank, world_size, device, *args)` in every rank; return the results in rank order.

    A direct worker of torchrun, mpiexec or srun joins the launcher's world: every rank must call
    `launch`, and every rank gets the full list. If the caller has initialised a process group, it
    is used and left alone. Any other process starts `nproc` ranks (default: 4) on this machine and
    ends them. `fn`, `args` and the results are pickled by value; tensors come back on the CPU.

    `backend=None` means NCCL if every rank can have a GPU, else gloo on the CPU. `timeout` is in
    seconds, for the whole call. `start_method` is multiprocessing's (default: forkserver, or spawn
    where there is no fork server). Ranks on GPUs cannot be forks of this process.

    The ranks record their calls, and on a timeout the error says which rank did not join which
    call. With `diagnose=True` the calls are compared while the ranks run: if they do not match, or
    if ranks wait for each other in a circle, the world ends at once, even if the results would have
    come. False: they record nothing, unless `record` asks for it. (In a launcher's world use
    `collectives diagnose -- torchrun ...`.)

    With `record="calls"` the results have an attribute `calls`: all that `fn` called, as Call of
    `collectives.recording.call`. With "tensors" each holds copies of its tensors from before and
    after it. A LaunchError has `calls`, too.

    Raises ValueError for arguments that cannot work, and LaunchError, which names the rank, if a
    rank raises, dies or hangs.

    >>> def total(rank, world_size, device):
    ...     x = torch.tensor([10.0**rank], device=device)
    ...     dist.all_reduce(x)
    ...     return x.item()
    >>> launch(total, 3)
    [111.0, 111.0, 111.0]
    """
    _check(fn, args, start_method, record)
    world = World.chosen(nproc, backend, device, timeout)
    return launch_in(world, fn, args, start_method, diagnose, record)


def launch_in(
    world: World,
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str | None = None,
    diagnose: bool | None = None,
    record: str | None = None,
) -> Results:
    """`launch` in a world that is chosen already: the launcher's, or one that starts here."""
    if world.worker is not None:
        from collectives.launcher import join

        return join.join(world, world.worker, fn, args, record)
    if start_method == "fork" and world.device == "cuda":
        # torch asks the driver for the GPUs if it finds no NVML, or slices of a GPU, which NVML
        # does not know: https://docs.pytorch.org/docs/stable/notes/multiprocessing.html
        raise ValueError(
            "start_method='fork' does not go with GPUs: a fork of this process may find no GPU, "
            "because CUDA does not survive a fork. Leave it out, or use 'spawn'."
        )
    from collectives.launcher import start
    from collectives.launcher.rank_spec import LaunchSpec
    from collectives.launcher.watch import LaunchWatch

    is_watched = diagnose is not False or record is not None
    watch = LaunchWatch(at_once=diagnose is True, record=record) if is_watched else None
    return start.start(LaunchSpec(world, fn, args, start_method), watch)


def _check(fn: object, args: object, start_method: str | None, record: str | None) -> None:
    if not callable(fn):
        raise ValueError(
            f"fn={fn!r} cannot be called: pass a function of (rank, world_size, device)."
        )
    if not isinstance(args, tuple | list):
        raise ValueError(f"args={args!r} is not a tuple: write args=({args!r},).")
    methods = multiprocessing.get_all_start_methods()
    if start_method is not None and start_method not in methods:
        raise ValueError(
            f"start_method={start_method!r} is not known here: use one of {', '.join(methods)}."
        )
    if record not in (None, *KINDS):
        raise ValueError(f"record={record!r} cannot be recorded: use one of {', '.join(KINDS)}.")
    ranks = sys.modules.get("collectives.launcher.rank")
    if ranks is not None and ranks.inside:
        raise RuntimeError(
            "launch was called inside a rank: call it from the program that is to start the ranks, "
            "not from them."
        )
