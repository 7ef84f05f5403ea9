"""A pending call, and the thread in which a group's asynchronous calls run, one after the other."""

import queue
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from collectives.backends.by_hand.links import LostPeer
from collectives.backends.process_group import new_future


class HandWork(dist.Work):
    """A torch Work. It keeps its tensors alive until it is done."""

    def __init__(self, what: str, group, tensors: list[torch.Tensor]):
        super().__init__()
        self.what = what
        self.group = group
        self.tensors = tensors
        self.deadline = time.monotonic() + group.timeout
        self.error: BaseException | None = None
        self.source = -1
        self.is_done = False
        self.future: torch.futures.Future | None = None
        self.future_end: torch.futures.Future | None = None  # completes the one above

    def end(self, error: BaseException | None = None) -> None:
        """The call has ended. An error breaks the group, because messages may be under way."""
        if error is None:
            self._finish(None)
        elif isinstance(error, TimeoutError):
            self.group.give_up(f"its {self.what} timed out")
            text = f"Timed out after {self.group.timeout:g} s {error}".rstrip()
            self._finish(dist.DistBackendError(f"{self._where()}: {text} [by_hand]"))
        else:
            first, own = self.group.give_up(str(error), tell=True), str(error)
            text = first if first == own or isinstance(error, LostPeer) else f"{own} ({first})"
            self._finish(RuntimeError(f"{self._where()} failed: {text} [by_hand]"))

    def refuse(self, reason: str) -> None:
        """The call has failed, and the group can still be used."""
        self._finish(RuntimeError(f"{self._where()} failed: {reason} [by_hand]"))

    def _finish(self, error: BaseException | None) -> None:
        with self.group.changed:
            if self.is_done:
                return
            self.error, self.is_done, future_end = error, True, self.future_end
            self.group.changed.notify_all()
        if future_end is not None:
            future_end.set_result(None)

    def _where(self) -> str:
        return f"rank {self.group.rank()}/{self.group.size()}: {self.what}"

    def is_completed(self) -> bool:
        return self.is_done

    def wait(self, timeout=None) -> bool:
        # The call goes on: its own time limit ends it, and one may wait again.
        if not self.is_done and not self._wait_for_end(timeout):
            raise dist.DistBackendError(
                f"{self._where()}: Timed out after {timeout.total_seconds():g} s [by_hand]"
            )
        if self.error is not None:
            raise self.error
        return True

    def _wait_for_end(self, timeout) -> bool:
        seconds = timeout.total_seconds() if timeout else None
        with self.group.changed:
            return self.group.changed.wait_for(lambda: self.is_done, seconds)

    def is_success(self) -> bool:
        return self.is_completed() and self.error is None

    def exception(self):
        return self.error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self.tensors

    def _source_rank(self) -> int:
        return self.source

    source_rank = _source_rank

    def get_future(self) -> torch.futures.Future:
        """A future that completes with the call, in the thread in which the call ran."""
        with self.group.changed:
            if self.future is not None:
                return self.future
            self.future, self.future_end = new_future(self._outcome)
            has_ended = self.is_done
        if has_ended:
            self.future_end.set_result(None)
        return self.future

    def _outcome(self) -> list[torch.Tensor]:
        if self.error is not None:
            raise self.error
        return self.tensors


class Collective(HandWork):
    """A collective: `run(deadline)` makes it, and returns when it is done."""

    def __init__(self, what: str, group, tensors: list[torch.Tensor], run: Callable):
        super().__init__(what, group, tensors)
        self.run = run

    def start(self, is_async: bool) -> None:
        self.group.queue.add(self, is_async)

    def make(self) -> None:
        try:
            self.run(self.deadline)
        except Exception as error:
            self.end(error)
        else:
            self.end()


class Queue:
    """The collectives of a group, in the order of their calls. The thread starts when needed."""

    def __init__(self):
        self.works: queue.SimpleQueue[Collective | None] = queue.SimpleQueue()
        self.last: Collective | None = None
        self.thread: threading.Thread | None = None

    def add(self, work: Collective, is_async: bool) -> None:
        """Run a call: at once if nobody else can use the time, else in the thread.

        subtle: a callback of a future runs in the thread, and may start a call and wait for it.
        """
        in_thread = threading.current_thread() is self.thread
        if in_thread or (not is_async and (self.last is None or self.last.is_completed())):
            work.make()
            return
        if self.thread is None:
            self.thread = threading.Thread(
                target=self._run, name="collectives-by-hand", daemon=True
            )
            self.thread.start()
        self.last = work
        self.works.put(work)

    def _run(self) -> None:
        while (work := self.works.get()) is not None:
            work.make()
            del work

    def close(self, waits: bool) -> None:
        """Let the thread finish what has begun and end, and with `waits` wait for it."""
        if self.thread is not None and threading.current_thread() is not self.thread:
            self.works.put(None)
            if waits:
                self.thread.join()
