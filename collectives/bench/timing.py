"""What every measurement shares: a row of the table, a clock, and a process that always ends.

This module imports nothing heavy: the ranks of `torch.multiprocessing.spawn` import it too, and
their start is timed.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

# The time limit of a single measurement, in seconds.
LIMIT = 300.0


@dataclass(frozen=True)
class Row:
    """Two figures that were measured in turn. `ratio` is the first divided by the second."""

    what: str
    first: str
    second: str
    ratio: float
    target: str
    met: str


@contextlib.contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Append to `seconds` how long the block takes."""
    begin = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - begin)


@contextlib.contextmanager
def process(command: list[str], **streams) -> Iterator[subprocess.Popen]:
    """A process that ends with the block: by itself or, after an error, by force with its children.

    RuntimeError if its exit status is not 0.
    """
    import psutil

    # In a session of its own: Ctrl-C reaches only this process, which then ends the other one.
    started = subprocess.Popen(command, start_new_session=True, **streams)
    try:
        yield started
        _, errors = started.communicate(timeout=LIMIT)
        if started.returncode:
            text = (errors or b"").decode(errors="replace")
            raise RuntimeError(
                f"{' '.join(command)} ended with status {started.returncode}\n{text}"
            )
    except BaseException:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(started.pid).children(recursive=True)
            for running in [*children, started]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    running.kill()
        started.wait()
        raise
