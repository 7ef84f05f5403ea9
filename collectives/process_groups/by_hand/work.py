"""A pending call, and the thread in which a group's asynchronous calls run, one after the other."""

import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collectives.process_groups.by_hand.links import LostPeer
from collectives.process_groups.process_group import PythonWork, new_future

# Whoever executes a call ends it at its deadline. If it cannot, `wait` ends so many seconds later.
_GRACE = 3.0

Body = Callable[[float], None]  # of a call: it takes the deadline


class ByHandWork(PythonWork):
    """A torch Work. Its group keeps it, and so its tensors, until it is done."""

    source = -1
    is_done = False

    def __init__(self, what: str, group: Any, tensors: list[torch.Tensor]):
        super().__init__()
        self.what = what
        self.group = group
        self.tensors = tensors
        self.deadline = time.monotonic() + group.timeout

    def end(self, error: BaseException | None = None) -> None:
        """The call has ended. An error breaks the group, because messages may be under way."""
        if error is None:
            self._finish(None)
        elif isinstance(error, TimeoutError):
            self.group.give_up(f"its {self.what} timed out")
            text = f"Timed out after {self.group.timeout:g} s {error}".rstrip()
            self._finish(dist.DistBackendError(f"{self._where()}: {text} [by_hand]"))
        else:
            first, own = self.group.give_up(str(error), publish=True), str(error)
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

    def is_completed(self) -> bool:
        return self.is_done

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Raises DistBackendError after `timeout`. The call goes on, and one may wait again."""
        limit = timeout.total_seconds() if timeout else self.deadline + _GRACE - time.monotonic()
        if not self.is_done and not self._wait_for_end(limit):
            seconds = limit if timeout else self.group.timeout
            raise dist.DistBackendError(f"{self._where()}: Timed out after {seconds:g} s [by_hand]")
        if self.error is not None:
            raise self.error
        return True

    def _wait_for_end(self, seconds: float) -> bool:
        with self.group.changed:
            return bool(self.group.changed.wait_for(lambda: self.is_done, seconds))

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
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


class Collective(ByHandWork):
    """A collective: `body(deadline)` executes it, and returns when it is done."""

    def __init__(self, what: str, group: Any, tensors: list[torch.Tensor], body: Body):
        super().__init__(what, group, tensors)
        self.body = body

    def start(self, is_async: bool) -> None:
        self.group.queue.add(self, is_async)

    def execute(self) -> None:
        try:
            self.body(self.deadline)
        except Exception as error:
            self.end(error)
        else:
            self.end()


class Queue:
    """Executes the collectives of a group one after the other, in a thread if need be.

    subtle: a callback of a future runs in the thread, and may start a call and wait for it, as that
    of PowerSGD does. Such a call is executed at once, before those that wait in the queue: on every
    rank, because a rank whose call ended sooner ran the callback before it made the next call.
    """

    def __init__(self) -> None:
        self.works: queue.Queue[Collective | None] = queue.Queue()
        self.executing = threading.RLock()
        self.thread: threading.Thread | None = None

    def add(self, work: Collective, is_async: bool) -> None:
        """Execute a call: here and now if the caller would only wait for it, else in the thread."""
        if threading.current_thread() is self.thread:
            work.execute()
        elif is_async or self.works.unfinished_tasks:
            if self.thread is None:
                self.thread = threading.Thread(
                    target=self._run, name="collectives-by-hand", daemon=True
                )
                self.thread.start()
            self.works.put(work)
        else:
            with self.executing:
                work.execute()

    def _run(self) -> None:
        while (work := self.works.get()) is not None:
            with self.executing:
                work.execute()
            del work  # subtle: or it would keep its tensors until the next call
            self.works.task_done()

    def close(self, waits: bool) -> None:
        """Let the thread finish what has begun and end, and with `waits` wait for it."""
        if self.thread is not None and threading.current_thread() is not self.thread:
            self.works.put(None)
            if waits:
                self.thread.join()
