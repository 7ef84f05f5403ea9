"""What becomes of a rank that makes a mistake: found out in the rank itself, and written down where the parent finds it."""

import json
import linecache
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collectives.proof import Mismatch

# Who still waits so many seconds after all ranks have begun is taken to wait for ever.
LIMIT = 1.5

# A rank that gives up waits this long, in seconds, for the others to write down what became of them.
_PATIENCE = 20.0

# What gloo says when the other end of a connection has gone, and what DETAIL says to those who are not to blame.
_PEER_IS_GONE = re.compile(r"closed by peer|reset by peer|Broken pipe|successfully reached monitoredBarrier")

# What differs from run to run in torch's messages: places in its source, addresses, times.
_NOISE = ((r"^\[[^]]*\]\W*", ""), (r" \[[^ ]*\]:\d+", ""), (r" at 0x[0-9a-f]+", ""), (r"\d+ ?ms\b", "n ms"))

_SENTENCE = re.compile(r".*?(?=\.?(\s+This is | *\n|\. |$))", re.DOTALL)

# Six fates, in words. `lost` is who could not go on because others had gone.
_FATES = {
    "dies": "died {}",
    "raises": "raised {}",
    "stuck": "waited in {}",
    "wrong": "{}",
    "lost": "could not go on: the others had gone",
    "returns": "returned",
}


@dataclass(frozen=True)
class Fate:
    """What became of a rank (a key of _FATES), how, and in which line of its function's file (0: unknown)."""

    became: str
    detail: str = ""
    line: int = 0

    def __str__(self) -> str:
        return _FATES[self.became].format(self.detail)


def watched(rank: int, world_size: int, device, step: Callable, folder: Path):
    """Call the step, and write down what became of this rank. If it waits for too long, its process ends."""
    import torch.distributed as dist

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a process says when it dies is never the same twice
    store = dist.distributed_c10d._get_default_store()
    if store.add("here", 1) == world_size:
        store.set("all are here", "")
    store.wait(["all are here"])
    if step.own.fresh:
        _be_like_a_worker_of_torchrun(store)
        dist.destroy_process_group()
    with _limit(LIMIT, folder, rank, world_size, step.__code__.co_filename):
        result, became = _outcome(step, rank, world_size, device)
    _report(folder, rank, became)
    return result


def _outcome(step: Callable, rank: int, world_size: int, device) -> tuple[object, Fate]:
    try:
        return step(rank, world_size, device), Fate("returns")
    except Mismatch as error:  # "rank 0/2: got .., should be .. [call]"
        return None, Fate("wrong", str(error).partition(": ")[2].rpartition(" [")[0])
    except SystemExit as error:
        return None, Fate("dies", f"(exit status {error.code or 0})", _line_of(error, step))
    except Exception as error:
        message = str(error)
        if _PEER_IS_GONE.search(message):
            return None, Fate("lost", line=_line_of(error, step))
        for pattern, instead in _NOISE:
            message = re.sub(pattern, instead, message)
        return None, Fate("raises", f"{type(error).__name__}: {_SENTENCE.match(message)[0]}", _line_of(error, step))


def _line_of(error: BaseException, step: Callable) -> int:
    """The line of the step's own file, innermost first, that an exception comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == step.__code__.co_filename), 0)


def _be_like_a_worker_of_torchrun(store) -> None:
    """Say in the environment where the world's store is, as torchrun does: there `init_process_group()` looks for it."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    os.environ |= {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


@contextmanager
def _limit(seconds: float, folder: Path, rank: int, world_size: int, file: str) -> Iterator[None]:
    """A rank that waits in C++ cannot be interrupted: so note the line where it stands, and end the process."""
    main, is_over = threading.get_ident(), threading.Event()

    def give_up() -> None:
        is_over.set()
        line = _line(sys._current_frames()[main], file)
        code = linecache.getline(file, line).partition("  #")[0].strip()
        _report(folder, rank, Fate("stuck", code or "an unknown place", line))
        until = time.monotonic() + _PATIENCE
        while len(reports(folder)) < world_size and time.monotonic() < until:  # the parent kills all when the first one ends
            time.sleep(0.01)
        os._exit(0)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()
    if is_over.is_set():  # another rank has ended, and so freed this one: but its time was up before
        timer.join()


def _line(frame, file: str) -> int:
    """The line of the step's own file, innermost first, that a stack stands in."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame else 0


def _report(folder: Path, rank: int, became: Fate) -> None:
    draft = folder / f"{rank}.draft"
    draft.write_text(json.dumps([became.became, became.detail, became.line]))
    draft.rename(draft.with_suffix(".json"))


def reports(folder: Path) -> dict[int, Fate]:
    return {int(path.stem): Fate(*json.loads(path.read_text())) for path in folder.glob("*.json")}
