"""What the pending calls of our process groups have in common."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future


class PythonWork(dist.Work):
    """The base class. A subclass has `is_completed`, `wait` and `get_future`."""

    what: str  # as in "all_reduce"
    group: Any
    tensors: list[torch.Tensor]
    source: int  # the rank that a message came from
    error: BaseException | None = None
    future: Future[list[torch.Tensor]] | None = None
    future_end: Future[None] | None = None  # completes the one above

    def _where(self) -> str:
        return f"rank {self.group.rank()}/{self.group.size()}: {self.what}"

    def is_success(self) -> bool:
        return bool(self.is_completed()) and self.error is None

    def exception(self) -> BaseException | None:
        return self.error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self.tensors

    def _source_rank(self) -> int:
        return self.source

    source_rank = _source_rank


class Batch(dist.Work):
    """Several pending calls, waited for as one."""

    def __init__(self, works: list[dist.Work]):
        super().__init__()
        self.works = works

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all(work.wait(timeout) for work in self.works)  # type: ignore[arg-type]


def new_future(outcome: Callable[[], Any]) -> tuple["Future[Any]", "Future[None]"]:
    """A future of a Work, and the one whose result, None, completes it: `outcome` gives its value.

    subtle: an exception that is set with `set_exception` is known to Python alone. DDP waits in
    C++, takes it for a tensor, and crashes. There only a callback that raises makes a future fail.
    """
    end: Future[None] = Future()
    return end.then(lambda _: outcome()), end
