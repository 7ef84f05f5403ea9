"""A pending call. Its MPI requests are polled, so a timeout holds and other threads can run."""

import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from collectives.process_groups.mpi.library import MPI
from collectives.process_groups.process_group import PythonWork, new_future

# A waiting rank first polls this many times (2 or 3 ms), and yields its core after some in a row.
# After that it sleeps this many seconds instead: with more ranks than cores, a rank that polls
# takes time from the rank that it waits for. A long message moves only while both ranks poll.
_QUICK_POLLS, _IN_A_ROW = 8000, 8
_NAP = 2e-5

_yield_core = getattr(os, "sched_yield", lambda: time.sleep(0))


def _nap() -> None:
    time.sleep(_NAP)


# Calls whose memory MPI may still use, even if the caller has dropped the Work.
_pending: set["MPIWork"] = set()


class MPIWork(PythonWork):
    """A torch Work for MPI requests. It keeps their tensors alive until they are done.

    `finish` is called once, with the status of the last request, after all have completed.
    """

    def __init__(
        self,
        what: str,
        group: Any,
        requests: list[Any],
        tensors: list[torch.Tensor],
        finish: Callable[[MPI.Status], Any] | None = None,
    ):
        super().__init__()
        self.what = what
        self.group = group
        self.requests = requests
        self.tensors = tensors
        self.finish = finish
        self.deadline = time.monotonic() + group.timeout
        self.status = MPI.Status()
        self.lock = threading.Lock()
        _pending.add(self)

    def is_completed(self) -> bool:
        """Poll once. Polling also lets MPI make progress, on this call and on all others."""
        return self._poll(1, _yield_core)

    def _poll(self, times: int, pause: Callable[[], None]) -> bool:
        """Poll at most `times` times. If all requests are done, finish the call and return True."""
        with self.lock:
            try:
                while self.requests:
                    is_done, status = self.requests[-1].Test, self.status
                    while not is_done(status):
                        times -= 1
                        if times <= 0:
                            return False
                        if times % _IN_A_ROW == 0:
                            pause()
                    self.requests.pop()
                finish, self.finish = self.finish, None
                if finish is not None:
                    finish(self.status)
            except Exception as error:
                self.requests.clear()
                self.error = error
        _pending.discard(self)
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Raises DistBackendError after `timeout`. The call goes on, and one may wait again.

        At the group's own timeout the call has failed, and the group cannot be used any more.
        """
        if not self._poll(_QUICK_POLLS, _yield_core):
            limit = time.monotonic() + timeout.total_seconds() if timeout else self.deadline
            while not self._poll(2 * _IN_A_ROW, _nap):
                if (now := time.monotonic()) > min(limit, self.deadline):
                    seconds = self.group.timeout
                    if now > self.deadline:
                        self.group.broken = f"its {self.what} timed out"
                    elif timeout:
                        seconds = timeout.total_seconds()
                    # "Timed out" is what torch's own backends say.
                    raise dist.DistBackendError(
                        f"{self._where()}: Timed out after {seconds:g} s [mpi]"
                    )
        if self.error is not None:
            raise RuntimeError(f"{self._where()} failed: {self.error} [mpi]") from self.error
        return True

    @property
    def source(self) -> int:  # type: ignore[override]
        return self.status.source

    def get_future(self) -> "Future[list[torch.Tensor]]":
        """A future that a thread completes, if the call is not done yet.

        DDP continues its backward pass meanwhile.
        """
        if self.future is None:
            self.future, self.future_end = new_future(self._outcome)
            # subtle: callbacks of a future run in that thread, which cannot wait for itself.
            if threading.current_thread() is _future_thread or self.is_completed():
                self.complete_future()
            else:
                if _future_thread.ident is None:
                    _future_thread.start()
                _awaited.put(self)
        return self.future

    def complete_future(self) -> None:
        assert self.future_end is not None
        self.future_end.set_result(None)

    def _outcome(self) -> list[torch.Tensor]:
        self.wait()
        return self.tensors


def poll_all() -> None:
    """Drop the calls that are done, also those that nobody waits for."""
    for work in list(_pending) if _pending else ():
        work.is_completed()


def _complete_futures() -> None:
    """In a thread: complete futures in the order in which their calls end."""
    while True:
        works = [_awaited.get()]
        while works:
            time.sleep(_NAP)
            while not _awaited.empty():
                works.append(_awaited.get())
            done = [
                work for work in works if work.is_completed() or time.monotonic() > work.deadline
            ]
            works = [work for work in works if work not in done]
            for work in done:
                work.complete_future()


_awaited: queue.SimpleQueue[MPIWork] = queue.SimpleQueue()
_future_thread = threading.Thread(
    target=_complete_futures, name="collectives-mpi-futures", daemon=True
)
