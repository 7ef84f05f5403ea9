"""Start the fork server: the process that imports torch once and forks each rank."""

import multiprocessing
import os
import signal
import sys

_preloaded: list[str] = []
_LAUNCHERS = {"TORCHELASTIC_RUN_ID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"}


def default_start_method() -> str:
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def preload(module: str) -> None:
    """Have the server import this, too, if it has not been started. Starts nothing."""
    _preloaded.append(module)


def start_server(modules: tuple[str, ...] = ()) -> None:
    """Start the fork server and return at once. It imports torch while the caller goes on.

    It also imports `modules`, but only if this call is the one that starts it.
    """
    if default_start_method() == "forkserver":
        from multiprocessing import forkserver, resource_tracker

        multiprocessing.set_forkserver_preload(
            ["collectives.launcher.preload", *_preloaded, *modules, "torch.distributed"]
        )
        resource_tracker.ensure_running()  # it lets SIGINT through when it has started
        # Ctrl-C reaches the server, too. It inherits this mask until it ignores the signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_beside_torch(*modules: str) -> None:
    """Start the server if the caller is about to import torch, and no launcher started it.

    The server must import torch, too: side by side that takes half the time.
    """
    if "torch" not in sys.modules and not _LAUNCHERS & os.environ.keys():
        start_server(modules)
