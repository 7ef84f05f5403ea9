"""Start the fork server: the process that imports torch once and forks each rank."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from collectives.recording import launchers

_preloaded: list[str] = []


# Any text switches it on; by this one a process knows that nobody else has.
SAFE_PATH = "PYTHONSAFEPATH", "while collectives starts a process"
_lock, _starts = threading.Lock(), 0


def default_start_method() -> str:
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def preload(module: str) -> None:
    """Have the server import this, too, if it has not been started. Starts nothing."""
    _preloaded.append(module)


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """What multiprocessing starts inside does not look for its modules in the current folder.

    It starts `python -c`, which looks there first until it has our sys.path: a torch.py that lies
    there, be it a stranger's, would run. If this process itself looks there first, so may that.
    """
    global _starts
    if _looks_here_first():
        yield
        return
    with _lock:  # not while something starts, which may take long
        _starts += 1
        if not os.environ.get(SAFE_PATH[0]):
            os.environ.update([SAFE_PATH])
    try:
        yield
    finally:
        with _lock:
            _starts -= 1
            if not _starts and SAFE_PATH in os.environ.items():
                del os.environ[SAFE_PATH[0]]


def _looks_here_first() -> bool:
    try:
        return os.path.samefile(sys.path[0] or os.curdir, os.curdir)
    except (OSError, LookupError):
        return False


@safe_path()
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
        _make_folder_anew(forkserver._forkserver)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _make_folder_anew(server: Any) -> None:
    """The server's socket lies in a temporary folder, which others may tidy up in a long program.

    The server that cannot be reached any more is forgotten. It ends with this program.
    """
    config: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    folder = config.get("tempdir")
    if folder is not None and not os.path.isdir(folder):
        os.mkdir(folder, 0o700)
        server._forkserver_pid = None


def exit_status() -> int | None:
    """How the server has ended, as in subprocess; None if it runs, or if the system cannot say."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    if server._forkserver_pid is None or not hasattr(os, "waitid"):
        return None
    try:
        # WNOWAIT: multiprocessing asks too, when it starts the server anew.
        ended = os.waitid(os.P_PID, server._forkserver_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # another thread has started it anew
        return None
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def start_beside_torch(*modules: str) -> None:
    """Start the server if the caller is about to import torch, and no launcher started it.

    The server must import torch, too: side by side that takes half the time.
    """
    if "torch" not in sys.modules and not launchers.is_started_by_launcher(os.environ):
        start_server(modules)
