"""One rank as its parent sees it: a process, two pipes, and a thread that waits for the process."""

import contextlib
import multiprocessing.spawn
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from collectives.launcher import server
from collectives.launcher.rank_spec import RankSpec

NAME = "collectives-rank-"

# One start at a time: multiprocessing's bookkeeping of children is not thread-safe.
starting = threading.Lock()

# Seconds that a rank, or the start of one, gets to end by itself.
EXIT_TIMEOUT = 5.0


class Event(NamedTuple):
    """What happened to a rank. The type of `value` depends on `kind`:

    "returned": the pickled result; "raised": the pickled exception; "ended": the exit code of the
    process; "not started": the exception that starting it raised.
    """

    rank: int
    kind: str
    value: Any


class Child:
    """The process of one rank. What happens to it is put into `events`."""

    def __init__(
        self,
        spec: RankSpec,
        context: BaseContext,
        payload: bytes,
        events: "queue.SimpleQueue[Event]",
    ):
        self.rank = spec.rank
        self.spec = spec
        self.context = context
        self.payload = payload
        self.events = events
        self.process: BaseProcess | None = None
        self.ended = False
        self.results_pipe, results_end = context.Pipe()
        self.stack_pipe, stack_end = context.Pipe(duplex=False)
        self.rank_ends = results_end, stack_end
        # subtle: Linux kills a rank when the thread that started it ends (see rank.py), so this
        # thread lives as long as the process.
        self.thread = threading.Thread(target=self._run, name=f"{NAME}{self.rank}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def _run(self) -> None:
        """Start the rank and report its outcome and its end."""
        try:
            process = self._start_process()
            if process is None:
                return
            self._close_rank_ends()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.results_pipe.send_bytes(self.payload)
            if self.results_pipe in connection.wait([self.results_pipe, process.sentinel]):
                with contextlib.suppress(EOFError, OSError):
                    self._report_outcome(self.results_pipe.recv_bytes())
            connection.wait([process.sentinel])
            # subtle: at once, before the system can give the number to another process.
            self._kill_group()
            self._report("ended", self._wait_for_status(process))
        except Exception as error:
            self._report("not started", error)

    def _start_process(self) -> BaseProcess | None:
        """Start the process; None if the launch has ended before that."""
        from collectives.launcher import rank

        with starting, _without_main(), server.safe_path():
            if self.ended:
                return None
            arguments = self.spec, *self.rank_ends
            # type: every context has it, but typeshed gives the base class none.
            self.process = self.context.Process(  # type: ignore[attr-defined]
                target=rank.main, args=arguments, name=f"{NAME}{self.rank}"
            )
            self.process.start()
            if self.ended:  # meanwhile, and `kill` has found no process
                self.kill()
                self.process.join()
                return None
            return self.process

    def _report_outcome(self, message: bytes) -> None:
        self._report("returned" if message[:1] == b"R" else "raised", message[1:])

    def _report(self, kind: str, value: object) -> None:
        self.events.put(Event(self.rank, kind, value))

    def _wait_for_status(self, process: BaseProcess) -> int | None:
        """The exit code. The sentinel may be ready a moment before the system knows the status."""
        while not self.ended:
            with starting:
                status = process.exitcode
            if status is not None:
                return status
            time.sleep(0.001)
        return None

    def stack(self, ask: bool = True) -> str:
        """The rank's stack as faulthandler writes it; empty if it does not answer within a second.

        `ask=False` only reads what a dying process has written.
        """
        from collectives.launcher import rank

        if rank.STACK_SIGNAL is None or self.process is None or self.process.pid is None:
            return ""
        if ask:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, rank.STACK_SIGNAL)
        pieces, patience = [], 1.0 if ask else 0.0
        while self.stack_pipe.poll(patience):
            piece = os.read(self.stack_pipe.fileno(), 65536)
            if not piece:
                break
            pieces.append(piece)
            patience = 0.05
        return b"".join(pieces).decode(errors="replace")

    def kill(self) -> None:
        """Kill the process if it runs, with what it has forked, and never start it after this."""
        self.ended = True
        process = self.process
        if process is not None and process.pid is not None and process.exitcode is None:
            self._kill_group()
            process.kill()  # it may be so new that it has no group yet

    def _kill_group(self) -> None:
        """Kill what the rank has forked. The rank leads a process group of its own."""
        if self.process is not None and self.process.pid is not None and hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _close_rank_ends(self) -> None:
        for end in self.rank_ends:
            end.close()

    def close(self) -> None:
        """Close the pipes and forget the process, after the thread has ended."""
        self._close_rank_ends()
        self.results_pipe.close()
        self.stack_pipe.close()
        # A thread that is stuck still has its process, and perhaps the lock.
        if self.process is not None and not self.thread.is_alive():
            with contextlib.suppress(ValueError), starting:  # ValueError: it could not be killed
                self.process.close()


def end_all(children: list[Child]) -> None:
    """Kill the processes, wait until they are gone, and close everything."""
    # Taking the lock lets a start that is under way finish, so that its process is killed too. If
    # the start is stuck we go on without the lock: its thread kills the rank as soon as it has one.
    has_lock = starting.acquire(timeout=EXIT_TIMEOUT)
    for child in children:
        child.kill()
    if has_lock:
        starting.release()
    until = time.monotonic() + EXIT_TIMEOUT
    for child in children:
        if child.thread.ident is not None:
            child.thread.join(max(0.0, until - time.monotonic()))
    for child in children:
        child.close()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep multiprocessing from running the caller's script again in the ranks that we start.

    They receive their function by value, so they do not need it. Processes with other names, which
    other threads may start meanwhile, are left alone.
    """
    real = multiprocessing.spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, object]:
        data = real(name)
        if name.startswith(NAME):
            data = {key: value for key, value in data.items() if not key.startswith("init_main")}
        return data

    multiprocessing.spawn.get_preparation_data = get_preparation_data
    try:
        yield
    finally:
        multiprocessing.spawn.get_preparation_data = real
