"""A call under way: MPI requests that are polled, so that a time limit holds and other threads can run."""

import os
import queue
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from collectives.backends.mpi.library import MPI

# So many looks in quick turn (2 or 3 ms), the core given away between them; then one look each so many seconds: with more ranks
# than cores, whoever waits is in the way of whoever is waited for. A long message moves only while both of its ranks look.
_QUICK_LOOKS = 3000
_NAP = 2e-5

_yield_core = getattr(os, "sched_yield", lambda: time.sleep(0))


def _nap() -> None:
    time.sleep(_NAP)


# Calls whose memory MPI may still touch, whether or not the caller kept the Work.
_under_way: set["MPIWork"] = set()


class MPIWork(dist.Work):
    """Torch's handle of MPI requests. It keeps their tensors alive until they are done.

    `finish` is called once, with the status of the last request, when all are done.
    """

    def __init__(
        self,
        what: str,
        group,
        requests: list[MPI.Request],
        tensors: list[torch.Tensor],
        finish: Callable | None = None,
    ):
        super().__init__()
        self.what = what
        self.group = group
        self.requests = requests
        self.tensors = tensors
        self.finish = finish
        self.deadline = time.monotonic() + group.timeout
        self.status = MPI.Status()
        self.error: BaseException | None = None
        self.future: torch.futures.Future | None = None
        self.lock = threading.Lock()
        _under_way.add(self)

    def is_completed(self) -> bool:
        """Look once, without waiting. Looking also lets MPI make progress, on this call and on all others."""
        return self._look(1, _yield_core)

    def _look(self, times: int, between: Callable) -> bool:
        """Look so many times whether all is done; then finish."""
        with self.lock:
            try:
                while self.requests:
                    is_done, status = self.requests[-1].Test, self.status
                    while not is_done(status):
                        times -= 1
                        if times <= 0:
                            return False
                        between()
                    self.requests.pop()
                finish, self.finish = self.finish, None
                if finish is not None:
                    finish(self.status)
            except Exception as error:
                self.requests.clear()
                self.error = error
        _under_way.discard(self)
        return True

    def wait(self, timeout=None) -> bool:
        if not self._look(_QUICK_LOOKS, _yield_core):
            limit = time.monotonic() + timeout.total_seconds() if timeout else self.deadline
            while not self._look(10, _nap):
                if time.monotonic() > limit:
                    self.group.broken = f"its {self.what} timed out"
                    seconds = timeout.total_seconds() if timeout else self.group.timeout
                    raise dist.DistBackendError(
                        f"{self._where()}: Timed out after {seconds:g} s [mpi]"
                    )  # torch's word for it
        if self.error is not None:
            raise RuntimeError(f"{self._where()} failed: {self.error} [mpi]") from self.error
        return True

    def _where(self) -> str:
        return f"rank {self.group.rank()}/{self.group.size()}: {self.what}"

    def is_success(self) -> bool:
        return self.is_completed() and self.error is None

    def exception(self):
        return self.error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self.tensors

    def _source_rank(self) -> int:
        return self.status.source

    source_rank = _source_rank

    def get_future(self) -> torch.futures.Future:
        """A thread of ours looks until all is done: DDP goes on with its backward pass meanwhile."""
        if self.future is None:
            self.future = torch.futures.Future()
            # subtle: what is called when a future is done runs in that thread, which cannot wait for itself.
            if threading.current_thread() is _keeper:
                self.keep_promise()
            else:
                if _keeper.ident is None:
                    _keeper.start()
                _promised.put(self)
        return self.future

    def keep_promise(self) -> None:
        try:
            self.wait()
        except RuntimeError as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(self.tensors)


def look_at_all() -> None:
    """Drop what is done of the calls that nobody waits for."""
    for work in list(_under_way):
        work.is_completed()


def _keep_promises() -> None:
    """In a thread of its own: complete futures in whatever order their calls end."""
    while True:
        works = [_promised.get()]
        while works:
            time.sleep(_NAP)
            while not _promised.empty():
                works.append(_promised.get())
            done = [
                work for work in works if work.is_completed() or time.monotonic() > work.deadline
            ]
            works = [work for work in works if work not in done]
            for work in done:
                work.keep_promise()


_promised: queue.SimpleQueue = queue.SimpleQueue()
_keeper = threading.Thread(target=_keep_promises, name="collectives-mpi-futures", daemon=True)


class MPIBatch(dist.Work):
    """Several calls under way, waited for as one."""

    def __init__(self, works: list[MPIWork]):
        super().__init__()
        self.works = works

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def wait(self, timeout=None) -> bool:
        return all(work.wait(timeout) for work in self.works)
