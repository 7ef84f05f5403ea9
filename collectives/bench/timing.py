"""What every measurement shares: a row of the table, a clock, and a process that always ends.

This module imports nothing heavy: the ranks of `torch.multiprocessing.spawn` import it, and must not pay for our comforts.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

# No single measurement takes this long, in seconds, on any machine worth measuring.
LIMIT = 300.0


@dataclass(frozen=True)
class Row:
    """Two things that were measured in turn, and how many times the first is the second."""

    what: str
    first: str
    second: str
    ratio: float
    target: str
    met: str


@contextlib.contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - begin)


@contextlib.contextmanager
def process(command: list[str], **streams) -> Iterator[subprocess.Popen]:
    """A process that ends with the block: by itself, or, when something goes wrong, with all that it started."""
    import psutil

    # In a session of its own: Ctrl-C is for this process alone, which then ends that one.
    started = subprocess.Popen(command, start_new_session=True, **streams)
    try:
        yield started
        _, errors = started.communicate(timeout=LIMIT)
        if started.returncode:
            told = (errors or b"").decode(errors="replace")
            raise RuntimeError(
                f"{' '.join(command)} ended with status {started.returncode}\n{told}"
            )
    except BaseException:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in [*psutil.Process(started.pid).children(recursive=True), started]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        started.wait()
        raise
