"""How a process under diagnosis ends: note its exception or exit, and the stack of a crash.

`sys.excepthook` does not see every exception: children of multiprocessing, torch.multiprocessing
and our own launcher catch what ends them. So these are patched as well.
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

_report: Callable[[dict], None] = lambda noted: None  # noqa: E731
_on_process_start: Callable[[], None] = lambda: None  # noqa: E731

# What the program gave to sys.exit, and where, if it has called nothing of torch.distributed since.
exited: tuple[object, stack.Frame] | None = None


def begin(report: Callable[[dict], None], on_process_start: Callable[[], None]) -> None:
    """`report` gets what ends the process, as plain values.

    `on_process_start` is called when a process of multiprocessing begins.
    """
    global _report, _on_process_start
    _report, _on_process_start = report, on_process_start
    _note_uncaught()
    _note_exit()


def listen(report: Callable[[dict], None]) -> None:
    """The same where somebody else catches exceptions and calls `note`."""
    global _report
    _report = report


def note(error: BaseException) -> None:
    """Report the exception that ends this process, at once: the other ranks will soon fail too."""
    if not isinstance(error, SystemExit):
        found = traceback.extract_tb(error.__traceback__)
        frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(found)]
        text = " ".join(f"{type(error).__name__}: {text_of(error)}".split()).removesuffix(":")
        _note(text, named(frames), is_guess=False)


def text_of(error: BaseException) -> str:
    """What an exception says. Its own `__str__` may raise."""
    try:
        return str(error)
    except Exception as unreadable:
        return f"(its text cannot be had: {type(unreadable).__name__})"


def note_exit() -> None:
    """The process ends by itself. Report a sys.exit with a status other than 0.

    This is a guess: the program may have caught it.
    """
    if exited is not None and exited[0] not in (None, 0):
        _note(f"SystemExit: {exited[0]}", exited[1], is_guess=True)


def _note(text: str, where: stack.Frame, is_guess: bool) -> None:
    # The cause stands at the begin, or at the end if a worker process raised it.
    if len(text) > 500:
        text = f"{text[:250]} ... {text[-245:]}"
    rank = os.environ.get("RANK")
    noted = {"at": time.monotonic_ns(), "text": text, "rank": rank, "where": where}
    with contextlib.suppress(Exception):
        _report(noted | {"is_guess": is_guess})


def named(frames: list[stack.Frame]) -> stack.Frame:
    """The frame that a report names, of those given innermost first; else the innermost."""
    return stack.named(frames) or (*frames, stack.NOWHERE)[0]


def keep_stack(file: Path) -> bool:
    """Have a signal that ends the process write its stack; False if the program does so already."""
    if faulthandler.is_enabled():
        return False
    # subtle: never closed. A program that closes all files, as a daemon does, may open one under
    # the same number.
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
        place = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        if not stack.is_library(place[0]):  # multiprocessing and others pass on so what they caught
            exited = status[0] if status else None, place
        real(*status)

    sys.exit = exit


def _patch_spawn(spawn) -> None:
    real = spawn._wrap

    @functools.wraps(real)
    def _wrap(fn, *args):
        return real(_noting(fn), *args)

    spawn._wrap = _wrap


def _patch_process(process) -> None:
    real = _noting(process.BaseProcess.run)

    @functools.wraps(real)
    def run(*args):
        _on_process_start()
        return real(*args)

    process.BaseProcess.run = run


def _patch_launch(rank) -> None:
    real = rank.describe

    @functools.wraps(real)
    def describe(error):
        note(error)
        return real(error)

    rank.describe = describe


# By module, what to do when it has been imported.
HOOKS = {
    "torch.multiprocessing.spawn": _patch_spawn,
    "multiprocessing.process": _patch_process,
    "collectives.launcher.rank": _patch_launch,
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
