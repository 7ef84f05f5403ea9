"""What the fork server imports before it forks ranks: torch, once for all of them.

The first launch starts the server, a small process. Every rank is a fork of it, so a rank does not
import torch again, and inherits no threads from the caller.
"""

import atexit
import contextlib
import errno
import gc
import os
import shutil
import signal
import socket
import sys
from multiprocessing import forkserver, reduction

import psutil

# Ctrl-C reaches every process of the terminal. The server ignores it, too, but after its imports;
# until here its parent had it blocked.
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

from collectives.launcher.server import SAFE_PATH  # noqa: E402

if SAFE_PATH in os.environ.items():  # it is not for what the forks start
    del os.environ[SAFE_PATH[0]]

import collectives.launcher.rank  # noqa: E402
import collectives.recording.record  # noqa: E402, F401

# The garbage collector no longer visits what exists now, so ranks go on sharing its memory.
gc.collect()
gc.freeze()


_recvfds = reduction.recvfds


def _recvfds_or_nothing(sock: socket.socket, size: int) -> list[int]:
    """A parent that is short of descriptors connects, and then sends nothing.

    Up to Python 3.13 the server would end. This is an error after which it goes on.
    """
    try:
        return _recvfds(sock, size)
    except EOFError as error:
        raise OSError(errno.ECONNABORTED, "nothing was sent") from error


reduction.recvfds = _recvfds_or_nothing


@atexit.register
def _remove_what_a_killed_parent_left() -> None:
    """Remove the server's socket, which lies in a temporary folder of its parent, and the ranks.

    The parent does so itself unless SIGKILL ends it.
    """
    if hasattr(sys, "last_value"):  # an error ended the server: the parent lives, and may go on
        return
    with contextlib.suppress(psutil.Error, OSError):
        for rank in psutil.Process().children():
            # A rank ends itself with all that it has forked, unless it keeps the interpreter lock.
            with contextlib.suppress(OSError):
                os.killpg(rank.pid, signal.SIGKILL)
    address = getattr(forkserver._forkserver, "_forkserver_address", None)
    if isinstance(address, str) and os.path.basename(os.path.dirname(address)).startswith("pymp-"):
        shutil.rmtree(os.path.dirname(address), ignore_errors=True)
