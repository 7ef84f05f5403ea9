"""In each process of a program under diagnosis: bring the recorder in when torch.distributed comes, and say how the process ends.

What is written, into the diagnosing parent's private folder, is named by the process id: `.calls`, the log of its calls, which also
takes where its main thread stands and what the Flight Recorder holds, when the parent asks and at the end; `.raised`, the exception
that ended a process, a rank or not; `.stack`, where a signal ended it. Nothing here changes what the program does, and no fault of
ours may reach it.
"""

import atexit
import contextlib
import importlib.abc
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from collectives.recording import call_log, exit_hooks
from collectives.recording.rank_log import Log, confess

_folder: Path | None = None
_hidden: dict = {}
_log: Log | None = None
_recording = None
_swapping = threading.RLock()


def begin(folder: str, hidden: dict) -> None:
    """`hidden` holds our modules, which the program's own imports are not to find."""
    global _folder, _hidden
    _folder, _hidden = Path(folder), hidden
    exit_hooks.begin(_say, _come)
    atexit.register(end)  # now, so that it comes after all that the program wants done at its end
    sys.meta_path.insert(0, _Hook())


def watch(file: BinaryIO) -> None:
    """In a rank of `launch`: note its calls there from now on. Whoever diagnoses the whole program does so already."""
    global _log
    if "COLLECTIVES_DIAGNOSE" not in os.environ:
        from collectives.recording import record

        _log = Log(file=file)
        exit_hooks.listen(_say)
        record.Recording(_log).begin()


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
    global _log, _recording
    import multiprocessing.util

    try:
        with _ours():
            from collectives.recording import record

        _log = Log(_folder)
        _recording = record.Recording(_log)
        _recording.begin()
    except Exception as error:
        confess(_folder, error)
        return
    os.register_at_fork(
        before=lambda: (
            _log.answering.acquire()
        ),  # what our thread has locked inside torch would stay so in the child
        after_in_parent=lambda: _log.answering.release(),
        after_in_child=lambda: (_log.forget(), _recording.start_anew()),
    )
    # A child of multiprocessing's forks does not come to atexit, but to its own list of what to do last.
    multiprocessing.util.register_after_fork(
        _log, lambda _: multiprocessing.util.Finalize(None, end, exitpriority=-100)
    )


def _come() -> None:
    """A process of multiprocessing begins what it is for."""
    if _log is not None:
        _log.come()


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    """Inside, `collectives` is ours; outside, it is whatever the program has."""
    with _swapping:
        theirs = {
            name: sys.modules.pop(name)
            for name in list(sys.modules)
            if name.partition(".")[0] == "collectives"
        }
        sys.modules.update(_hidden)
        try:
            yield
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == "collectives"]:
                _hidden[name] = sys.modules.pop(name)
            sys.modules.update(theirs)


def end() -> None:
    """The process ends of its own accord."""
    if _log is not None and _log.writer is not None:
        exit_hooks.note_exit()
        with contextlib.suppress(Exception):
            _log.last_answer()
            if _recording is not None:
                _recording.note_unawaited()
        _log.writer.set_ended()


def _say(told: dict) -> None:
    """What ends this process."""
    text = json.dumps(told)
    if _log is not None and _log.writer:
        _log.writer.put(call_log.RAISED, text.encode())
        _log.last_answer()
    if _folder:
        (_folder / f"{os.getpid()}.raised").write_text(text)
