"""Record the calls of this process, and note how it ends.

In a program under diagnosis the parent's private folder gets files, named by the process id.
`.start`: who the process is (see process_start.py). `.calls`: the log of its calls, which also
takes where its main thread is and what the Flight Recorder holds, when the parent asks and at the
end. `.raised`: the exception that ended the process, a rank or not. `.stack`: where a signal ended
it. The program does what it would do without us, and no error of ours reaches it. A rank of
`launch` has such a log alone, in a file without a name.
"""

import atexit
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..semantics.on_import import OnImport
from . import call_log, process_start
from .exit_hooks import ExitHooks
from .rank_log import Log, write_error

# As functional.MODULE: that imports torch.
_FUNCTIONAL = "torch.distributed._functional_collectives"


class Recording:
    """What this process notes of itself. `folder`: the parent's, in a program under diagnosis."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self.exits = ExitHooks(self._note_end, self._on_process_start)
        self.log: Log | None = None
        self.recorder: Any = None  # a record.Recorder, in a program under diagnosis

    def begin(self) -> None:
        """In a program under diagnosis: record once it imports torch.distributed."""
        self.exits.install()
        atexit.register(self.end)  # now, so that it runs after all that the program registers
        torch_modules = {
            "torch.distributed.distributed_c10d": self._record,
            _FUNCTIONAL: self._record_functional,
        }
        OnImport(torch_modules | self.exits.on_import)

    def begin_in_rank(self, file: BinaryIO) -> None:
        """In a rank of `launch`: note its calls in the file."""
        from . import record

        self.log = Log(self.exits, file=file)
        recorder = record.attach(self.log)
        OnImport({_FUNCTIONAL: recorder.wrap_functional})

    def end(self) -> None:
        """The process ends by itself."""
        if self.log is not None and self.log.writer is not None:
            self.exits.note_end()
            with contextlib.suppress(Exception):
                self.log.last_answer()
                if self.recorder is not None:
                    self.recorder.note_unawaited()
            self.log.writer.set_ended()

    @contextlib.contextmanager
    def function(self) -> Iterator[None]:
        """The calls inside the block are those of the function of a launch."""
        writer = self.log.writer if self.log is not None else None
        if writer is not None:
            writer.begin_function()
        try:
            yield
        finally:
            if writer is not None:
                writer.end_function()

    def _record(self, c10d) -> None:
        import multiprocessing.util

        try:
            from . import record

            log = self.log = Log(self.exits, self.folder)
            recorder = self.recorder = record.attach(log)
        except Exception as error:
            write_error(self.folder, error)
            return

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
            log, lambda _: multiprocessing.util.Finalize(None, self.end, exitpriority=-100)
        )

    def _record_functional(self, module) -> None:
        if self.recorder is not None:
            self.recorder.wrap_functional(module)

    def _on_process_start(self, process) -> None:
        """A process of multiprocessing begins what it is for."""
        if self.folder is not None:
            with contextlib.suppress(Exception):
                process_start.note(str(self.folder), process)
        if self.log is not None:
            self.log.on_process_start()

    def _note_end(self, recorded: dict) -> None:
        """`recorded`: what ends this process; see exit_hooks."""
        text = json.dumps(recorded)
        if self.log is not None and self.log.writer:
            self.log.writer.put(call_log.RAISED, text.encode())
            self.log.last_answer()
        if self.folder:
            (self.folder / f"{os.getpid()}.raised").write_text(text)
