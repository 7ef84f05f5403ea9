"""What the fork server imports before it forks ranks: torch, once for all of them.

The first launch starts the server, a small process. Every rank is a fork of it, so a rank does not
import torch again, and inherits no threads from the caller.
"""

import atexit
import gc
import os
import shutil
import signal
from multiprocessing import forkserver

# Ctrl-C reaches every process of the terminal. The server ignores it, too, but after its imports;
# until here its parent had it blocked.
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

import collectives.launcher.rank  # noqa: E402
import collectives.recording.record  # noqa: E402, F401

# The garbage collector no longer visits what exists now, so ranks go on sharing its memory.
gc.collect()
gc.freeze()


@atexit.register
def _remove_what_a_killed_parent_left() -> None:
    """Remove the server's socket, which lies in a temporary folder of its parent.

    The parent removes the folder itself unless SIGKILL ends it.
    """
    address = getattr(forkserver._forkserver, "_forkserver_address", None)
    if isinstance(address, str) and os.path.basename(os.path.dirname(address)).startswith("pymp-"):
        shutil.rmtree(os.path.dirname(address), ignore_errors=True)
