"""What becomes of a rank that makes a mistake: found out in the rank itself, and written down where the parent finds it."""

import inspect
import json
import linecache
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collectives.spec.check import Mismatch

# Who still waits so many seconds after all ranks have begun is taken to wait for ever.
LIMIT = 1.5

# What gloo says when the other end of a connection has gone, and what DETAIL says to those who are not to blame.
_PEER_IS_GONE = re.compile(
    r"closed by peer|reset by peer|Broken pipe|successfully reached monitoredBarrier"
)

# What differs from run to run in torch's messages: places in its source, addresses, times.
_NOISE = (
    (r"^\[[^]]*\]\W*", ""),
    (r" \[[^ ]*\]:\d+", ""),
    (r" at 0x[0-9a-f]+", ""),
    (r"\d+ ?ms\b", "n ms"),
)

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


def watched(rank: int, world_size: int, device, step: Callable, folder: Path, agent: int | None):
    """Call the step, and write down what became of this rank. If it waits for too long, it does not return.

    A step that wants fresh ranks finds the environment in which torchrun starts them; `agent` is the port of the store there.
    """
    import torch.distributed as dist

    os.dup2(
        os.open(os.devnull, os.O_WRONLY), 2
    )  # what a process says when it dies is never the same twice
    store = dist.distributed_c10d._get_default_store()
    _meet(store, "here", world_size)
    if agent is not None:
        _be_like_a_worker_of_torchrun(agent)
        inspect.unwrap(
            dist.destroy_process_group
        )()  # not a call of the mistake's own: a record is not to hold it
        _meet(store, "fresh", world_size)
    with _limit(LIMIT, folder, rank, world_size, step.__code__.co_filename):
        result, became = _outcome(step, rank, world_size, device)
    _report(folder, rank, world_size, became)
    return result


def _meet(store, where: str, world_size: int) -> None:
    """A barrier that needs no process group."""
    if store.add(where, 1) == world_size:
        store.set(f"all are {where}", "")
    store.wait([f"all are {where}"])


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
        return None, Fate(
            "raises",
            f"{type(error).__name__}: {_SENTENCE.match(message)[0]}",
            _line_of(error, step),
        )


def _line_of(error: BaseException, step: Callable) -> int:
    """The line of the step's own file, innermost first, that an exception comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    return next(
        (frame.lineno for frame in reversed(frames) if frame.filename == step.__code__.co_filename),
        0,
    )


def _be_like_a_worker_of_torchrun(port: int) -> None:
    """Say in the environment where the store is, as torchrun does: there `init_process_group()` looks for it.

    subtle: a store's client asks the name server for the name of ::ffff:127.0.0.1. One that does not answer must not look like a
    mistake that hangs: the C library is told to wait 1 s instead of 5.
    """
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RES_OPTIONS": "timeout:1 attempts:1",
    }


@contextmanager
def _limit(seconds: float, folder: Path, rank: int, world_size: int, file: str) -> Iterator[None]:
    """A rank that waits in C++ cannot be interrupted: so another thread notes where it stands, and it never returns from there."""
    main = threading.get_ident()

    def give_up() -> None:
        line = _line(sys._current_frames()[main], file)
        code = linecache.getline(file, line).partition("  #")[0].strip()
        _report(folder, rank, world_size, Fate("stuck", code or "an unknown place", line))

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


def _line(frame, file: str) -> int:
    """The line of the step's own file, innermost first, that a stack stands in."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame else 0


def _report(folder: Path, rank: int, world_size: int, fate: Fate) -> None:
    """Write down what became of this rank; in a world with ranks that are stuck, the last one to do so ends the world.

    subtle: a rank that is stuck stops, with all its threads, and is killed later. Were it to end now, those that wait for it would
    lose it, and their calls would fail in their last moment.
    """
    draft = folder / f"{rank}.draft"
    draft.write_text(json.dumps([fate.became, fate.detail, fate.line]))
    draft.rename(draft.with_suffix(".json"))
    fates = reports(folder)
    if "stuck" in {one.became for one in fates.values()}:
        if len(fates) == world_size:
            os._exit(0)
        if fate.became == "stuck":
            os.kill(os.getpid(), signal.SIGSTOP)


def reports(folder: Path) -> dict[int, Fate]:
    """What has been written down so far, by rank."""
    return {int(path.stem): Fate(*json.loads(path.read_text())) for path in folder.glob("*.json")}
