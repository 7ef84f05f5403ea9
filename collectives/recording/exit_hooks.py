"""How a process of a program under diagnosis ends: an exception or an exit is told before it is gone, a crash leaves its stack.

`sys.excepthook` does not see all: children of multiprocessing, torch.multiprocessing and our own launcher catch what ends them.
"""

import contextlib
import faulthandler
import functools
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from . import stack

_say: Callable[[dict], None] = lambda told: None  # noqa: E731
_come: Callable[[], None] = lambda: None  # noqa: E731

# Where the program called sys.exit last, and with what, if it has called nothing of torch.distributed since.
exited: tuple[object, list] | None = None


def begin(say: Callable[[dict], None], come: Callable[[], None]) -> None:
    """`say` is told what ends the process, as plain values; `come` is called as one of multiprocessing begins."""
    global _say, _come
    _say, _come = say, come
    _note_uncaught()
    _note_exit()


def listen(say: Callable[[dict], None]) -> None:
    """The same, where somebody else catches exceptions and calls `note`."""
    global _say
    _say = say


def note(error: BaseException) -> None:
    """Say which exception ends this process, at once: the other ranks will soon fail too."""
    if not isinstance(error, SystemExit):
        frames = [
            [frame.filename, frame.lineno, frame.name]
            for frame in traceback.extract_tb(error.__traceback__)
        ]
        _tell(
            " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":"),
            own(frames[::-1]),
        )


def note_exit() -> None:
    """The process ends of its own accord, perhaps by a sys.exit that is no success."""
    if exited is not None and exited[0] not in (None, 0):
        _tell(f"SystemExit: {exited[0]}", exited[1], is_guess=True)


def _tell(text: str, where: list, is_guess: bool = False) -> None:
    """`is_guess`: the program may have caught it; its exit status will show."""
    if (
        len(text) > 500
    ):  # the cause is where it begins, or, of an exception that a worker process had, where it ends
        text = f"{text[:250]} ... {text[-245:]}"
    told = {"at": time.monotonic_ns(), "text": text, "rank": os.environ.get("RANK"), "where": where}
    with contextlib.suppress(Exception):
        _say(told | {"is_guess": is_guess})


def keep_stack(file: Path) -> bool:
    """A signal that ends the process writes where it stood there; False where the program sees to that itself."""
    if faulthandler.is_enabled():
        return False
    # subtle: never closed. A program that closes all files, as a daemon does, has one of its own by that number then.
    faulthandler.enable(os.open(file, os.O_WRONLY | os.O_CREAT))
    return True


def _note_uncaught() -> None:
    def hook(kind, error, trace):
        note(error)
        before(kind, error, trace)

    before, sys.excepthook = sys.excepthook, hook


def _note_exit() -> None:
    real = sys.exit

    @functools.wraps(real)
    def exit(*status):
        global exited
        frame = sys._getframe(1)
        if not stack.is_library(
            frame.f_code.co_filename
        ):  # multiprocessing and others end so what they caught
            exited = (
                status[0] if status else None,
                [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name],
            )
        real(*status)

    sys.exit = exit


def _note_what_spawn_catches(spawn) -> None:
    real = spawn._wrap

    @functools.wraps(real)
    def _wrap(fn, *args):
        return real(_noting(fn), *args)

    spawn._wrap = _wrap


def _note_what_processes_catch(process) -> None:
    real = _noting(process.BaseProcess.run)

    @functools.wraps(real)
    def run(*args):
        _come()
        return real(*args)

    process.BaseProcess.run = run


def _note_what_launch_catches(rank) -> None:
    real = rank.describe

    @functools.wraps(real)
    def describe(error):
        note(error)
        return real(error)

    rank.describe = describe


# What to do with which module, when it has been imported.
HOOKS = {
    "torch.multiprocessing.spawn": _note_what_spawn_catches,
    "multiprocessing.process": _note_what_processes_catch,
    "collectives.launcher.rank": _note_what_launch_catches,
}


def _noting(fn: Callable) -> Callable:
    @functools.wraps(fn)
    def noting(*args, **kwargs):
        try:
            return fn(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            note(error)
            raise

    return noting


def own(frames: list) -> list:
    """The innermost frame, of those given innermost first, that is the program's own; else the innermost.

    Not one without a line: that begins code which a library has made, a dataclass's methods, say.
    """
    return next(
        (frame for frame in frames if frame[1] and not stack.is_library(frame[0])),
        frames[0] if frames else ["", 0, ""],
    )
