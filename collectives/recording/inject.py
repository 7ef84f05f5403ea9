"""Record the calls of a process under diagnosis, and note how it ends.

The parent's private folder gets three files, named by the process id. `.calls`: the log of its
calls, which also takes where its main thread is and what the Flight Recorder holds, when the parent
asks and at the end. `.raised`: the exception that ended the process, a rank or not. `.stack`: where
a signal ended it. The program does what it would do without us, and no error of ours reaches it.
"""

import atexit
import contextlib
import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from . import call_log, exit_hooks
from .rank_log import Log, write_error

_folder: Path | None = None
_log: Log | None = None
_recorder = None


def begin(folder: str) -> None:
    """In a program under diagnosis: record once it imports torch.distributed."""
    global _folder
    _folder = Path(folder)
    exit_hooks.begin(_note_end, _on_process_start)
    atexit.register(end)  # now, so that it runs after all that the program registers
    sys.meta_path.insert(0, _Hook())


def watch(file: BinaryIO) -> None:
    """In a rank of `launch`: note its calls, unless the whole program is under diagnosis."""
    global _log
    if "COLLECTIVES_DIAGNOSE" not in os.environ:
        from . import record

        _log = Log(file=file)
        exit_hooks.listen(_note_end)
        record.attach(_log)


class _Hook(importlib.abc.MetaPathFinder):
    """Does something to a module as soon as it has been loaded."""

    def __init__(self):
        self.todo: dict[str, Callable] = {
            "torch.distributed.distributed_c10d": _record,
            **exit_hooks.HOOKS,
        }

    def find_spec(self, name, path=None, target=None):
        todo = self.todo.pop(name, None)
        if todo is None:
            return None
        spec = (
            importlib.util.find_spec(name)
            if path is None
            else importlib.machinery.PathFinder.find_spec(name, path)
        )
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            with contextlib.suppress(Exception):
                todo(module)

        spec.loader.exec_module = exec_module
        return spec


def _record(c10d) -> None:
    global _log, _recorder
    import multiprocessing.util

    try:
        from . import record

        _log = Log(_folder)
        _recorder = record.attach(_log)
    except Exception as error:
        write_error(_folder, error)
        return
    log, recorder = _log, _recorder

    def reset_after_fork() -> None:
        log.reset_after_fork()
        recorder.reset_after_fork()

    os.register_at_fork(
        # What our thread has locked inside torch would stay locked in the child.
        before=lambda: log.answering.acquire(),
        after_in_parent=lambda: log.answering.release(),
        after_in_child=reset_after_fork,
    )
    # A child that multiprocessing forks does not run atexit's functions, but a list of its own.
    multiprocessing.util.register_after_fork(
        _log, lambda _: multiprocessing.util.Finalize(None, end, exitpriority=-100)
    )


def _on_process_start() -> None:
    """A process of multiprocessing begins what it is for."""
    if _log is not None:
        _log.on_process_start()


def end() -> None:
    """The process ends by itself."""
    if _log is not None and _log.writer is not None:
        exit_hooks.note_exit()
        with contextlib.suppress(Exception):
            _log.last_answer()
            if _recorder is not None:
                _recorder.note_unawaited()
        _log.writer.set_ended()


def _note_end(noted: dict) -> None:
    """`noted`: what ends this process; see exit_hooks."""
    text = json.dumps(noted)
    if _log is not None and _log.writer:
        _log.writer.put(call_log.RAISED, text.encode())
        _log.last_answer()
    if _folder:
        (_folder / f"{os.getpid()}.raised").write_text(text)
