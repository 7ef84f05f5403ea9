"""What the fork server imports before it forks ranks: torch, once for all of them.

The server is a small process of its own, started by the first launch; each later rank is a fork of it, so that it neither imports
torch anew nor inherits anything of the caller's threads.
"""

import atexit
import gc
import os
import shutil
from multiprocessing import forkserver

import collectives.launcher.rank
import collectives.recording.record  # noqa: F401

# Objects that the collector never visits stay in pages that all ranks share.
gc.collect()
gc.freeze()


@atexit.register
def _remove_what_a_killed_parent_left() -> None:
    """The server's socket lies in a temporary directory of the parent's, which a SIGKILL keeps the parent from removing."""
    address = getattr(forkserver._forkserver, "_forkserver_address", None)
    if isinstance(address, str) and os.path.basename(os.path.dirname(address)).startswith("pymp-"):
        shutil.rmtree(os.path.dirname(address), ignore_errors=True)
