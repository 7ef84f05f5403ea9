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
from typing import Any

from . import stack


class ExitHooks:
    """Tells `report` what ends this process, as plain values.

    `on_process_start` is called when a process of multiprocessing begins, with its object.
    `exited`: what the program gave to sys.exit, and where, if it has called nothing of
    torch.distributed since.
    """

    def __init__(
        self,
        report: Callable[[dict], None],
        on_process_start: Callable[[Any], None] = lambda process: None,
    ):
        self.report = report
        self.on_process_start = on_process_start
        self.exited: tuple[object, stack.Frame] | None = None
        # By module, what to do when it has been imported.
        self.on_import: dict[str, Callable] = {
            "torch.multiprocessing.spawn": self._patch_spawn,
            "multiprocessing.process": self._patch_process,
            "collectives.launcher.rank": self._patch_launch,
        }

    def install(self) -> None:
        """See what ends the main program. The modules of `on_import` are the caller's to find."""
        self._note_uncaught()
        self._note_exit()

    def note(self, error: BaseException) -> None:
        """Report the exception that ends this process, at once: others will soon fail too."""
        if not isinstance(error, SystemExit):
            found = traceback.extract_tb(error.__traceback__)
            frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(found)]
            kind = type(error).__name__
            text = " ".join(f"{kind}: {text_of(error)}".split()).removesuffix(":")
            where, does = stack.named_or_innermost(frames), stack.torch_does(frames)
            self._note(kind, text, where, is_guess=False, torch_does=does)

    def note_end(self) -> None:
        """The process ends by itself. Report a sys.exit with a status other than 0.

        This is a guess: the program may have caught it.
        """
        if self.exited is not None and self.exited[0] not in (None, 0):
            status, where = self.exited
            self._note("SystemExit", f"SystemExit: {status}", where, is_guess=True)

    def _note(
        self, kind: str, text: str, where: stack.Frame, is_guess: bool, torch_does: str = ""
    ) -> None:
        # The cause stands at the begin, or at the end if a worker process raised it.
        if len(text) > 500:
            text = f"{text[:250]} ... {text[-245:]}"
        rank = os.environ.get("RANK")
        recorded = {"at": time.monotonic_ns(), "type": kind, "text": text, "rank": rank}
        with contextlib.suppress(Exception):
            place = {"where": where, "torch_does": torch_does}
            self.report(recorded | place | {"is_guess": is_guess})

    def _note_uncaught(self) -> None:
        def hook(kind, error, trace):
            self.note(error)
            before(kind, error, trace)

        before, sys.excepthook = sys.excepthook, hook

    def _note_exit(self) -> None:
        real = sys.exit

        @functools.wraps(real)
        def exit(*status):
            frame = sys._getframe(1)
            place = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
            # multiprocessing and others pass on so what they caught.
            if not stack.is_library(place[0]):
                self.exited = status[0] if status else None, place
            real(*status)

        sys.exit = exit

    def _patch_spawn(self, spawn) -> None:
        real = spawn._wrap

        @functools.wraps(real)
        def _wrap(fn, *args):
            return real(self._noting(fn), *args)

        spawn._wrap = _wrap

    def _patch_process(self, process) -> None:
        real = self._noting(process.BaseProcess.run)

        @functools.wraps(real)
        def run(*args):
            self.on_process_start(args[0])
            return real(*args)

        process.BaseProcess.run = run

    def _patch_launch(self, rank) -> None:
        real = rank.describe

        @functools.wraps(real)
        def describe(error):
            self.note(error)
            return real(error)

        rank.describe = describe

    def _noting(self, fn: Callable) -> Callable:
        @functools.wraps(fn)
        def noting(*args, **kwargs):
            try:
                return fn(*args, **kwargs)
            except (Exception, KeyboardInterrupt) as error:
                self.note(error)
                raise

        return noting


def text_of(error: BaseException) -> str:
    """What an exception says. Its own `__str__` may raise."""
    try:
        return str(error)
    except Exception as unreadable:
        return f"(its text cannot be had: {type(unreadable).__name__})"


def keep_stack(file: Path) -> bool:
    """Have a signal that ends the process write its stack; False if the program does so already."""
    if faulthandler.is_enabled():
        return False
    # subtle: never closed. A program that closes all files, as a daemon does, may open one under
    # the same number.
    faulthandler.enable(os.open(file, os.O_WRONLY | os.O_CREAT))
    return True
