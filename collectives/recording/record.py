"""Note each call that a rank makes to torch.distributed: its name, arguments, caller and times, without changing what it does.

The public functions are wrapped in place, in `torch.distributed` and where they are defined, and so is `Work.wait`. What a call
does inside (all_gather_object calls all_gather) is its own business and is not noted. `batch_isend_irecv` and `new_subgroups` are
not wrapped: the calls that they consist of (isend, irecv, new_group) are noted one by one.

    with recording() as calls:
        dist.all_reduce(x)
    print(calls[0].file, calls[0].line)
"""

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .call import GROUPS, POINT_TO_POINT, Call, What, was_refused
from .call_arguments import Reader
from .call_site import caller
from .pending_work import WAYS, UnderWay
from .sink import Memory, Sink

# Some are two names for one function: all_gather_single is the newer one of all_gather_into_tensor. Not every torch has all.
WRAPPED = (
    *POINT_TO_POINT,
    *(
        "broadcast",
        "all_reduce",
        "reduce",
        "all_gather",
        "gather",
        "scatter",
        "reduce_scatter",
        "all_to_all",
        "all_to_all_single",
    ),
    *(
        "all_gather_into_tensor",
        "all_gather_single",
        "reduce_scatter_tensor",
        "reduce_scatter_single",
    ),
    *("_all_gather_base", "_reduce_scatter_base", "all_reduce_coalesced", "all_gather_coalesced"),
    *(
        "all_gather_object",
        "gather_object",
        "scatter_object_list",
        "broadcast_object_list",
        "barrier",
        "monitored_barrier",
    ),
    *GROUPS,
)

# subtle: Python's warnings count frames to find the line to blame (torch warns of its deprecated names so), and skip those whose
# file bears these words. With them a warning names the caller's line, as it does without us.
_UNSEEN = "<frozen importlib._bootstrap> collectives.recording.record"


def _unseen(function: Callable) -> Callable:
    function.__code__ = function.__code__.replace(co_filename=_UNSEEN)
    with contextlib.suppress(
        AttributeError
    ):  # nor does torch.compile look into it, and what it calls; older ones have other ways
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


class _Noted(NamedTuple):
    number: int
    seq: int | None
    what: What


class _Inside(threading.local):
    """Whether this thread is inside a call that is noted: what that does is its own business."""

    call = False


class Recording:
    """The wrappers of torch.distributed that tell one sink. Recordings may be nested: the later ends first."""

    def __init__(self, sink: Sink):
        self.sink = sink
        self.reader = Reader()
        self.inside = _Inside()
        # By id, the calls whose Work nobody has waited for yet. subtle: a Work takes no attributes, and must not be kept alive.
        self.works: dict[int, UnderWay] = {}
        self.originals: list[tuple] = []
        self.kinds: set[type] = set()  # of Work, as far as they are wrapped

    def begin(self) -> None:
        for name in WRAPPED:
            if (real := getattr(c10d, name, None)) is not None:
                wrapper = self._wrap(name, real)
                for module in (c10d, dist):
                    if module.__dict__.get(name) is real:
                        self._replace(module, name, wrapper)
        self._wrap_work(c10d.Work)

    def end(self) -> None:
        for place, name, original in reversed(self.originals):
            setattr(place, name, original)
        self.originals.clear()
        self.kinds.clear()

    def start_anew(self) -> None:
        """In a forked child: what was counted is the parent's."""
        self.reader = Reader()
        self.works.clear()

    def tell_unawaited(self) -> None:
        """The process ends: nobody will wait any more."""
        for key in list(self.works):
            self._gone(key)

    def _gone(self, key: int) -> None:
        under_way = self.works.pop(key, None)
        if under_way is not None and not under_way.is_settled:
            self.sink.notice("unawaited", under_way.noted.what, None)

    def _replace(self, place, name: str, wrapper: Callable) -> None:
        self.originals.append((place, name, place.__dict__[name]))
        setattr(place, name, wrapper)

    def _wrap(self, name: str, real: Callable) -> Callable:
        names = tuple(inspect.signature(real).parameters)

        @functools.wraps(real)
        @_unseen
        def wrapper(*args, **kwargs):
            if self.inside.call:
                return real(*args, **kwargs)
            given = dict(zip(names, args, strict=False), **kwargs)
            noted = self._enter(name, given, caller())
            if noted is None:
                return real(*args, **kwargs)
            result = self._call(noted, real, args, kwargs)
            self.sink.leave(
                noted.number, None, result if isinstance(result, int) else None
            )  # recv returns who sent
            if result is not None and isinstance(result, c10d.Work):
                self._follow(result, noted, given)
            elif self.sink.tensors:
                self.sink.done(noted.number, given)
            return result

        return wrapper

    def _wrap_wait(self, kind: type) -> None:
        real = kind.wait

        @functools.wraps(real)
        @_unseen
        def wait(work, *args, **kwargs):
            under_way = None if self.inside.call else self.works.get(id(work))
            if under_way is None:
                return real(work, *args, **kwargs)
            noted, place = under_way.noted, caller()
            if under_way.was_written_to():
                self.sink.notice("changed", noted.what, place)
            under_way.is_settled = True
            what = self.reader.waiting(noted.what, place)
            number = self.sink.enter(noted.seq, noted.number, what, {})
            result = self._call(_Noted(number, None, what), real, (work, *args), kwargs)
            self.sink.leave(
                number, None, _source(what, work) if noted.what.name == "irecv" else None
            )
            self.works.pop(id(work), None)
            if self.sink.tensors:
                self.sink.done(noted.number, under_way.given)
            return result

        self._replace(kind, "wait", wait)

    def _wrap_work(self, kind: type) -> None:
        self.kinds.add(kind)
        if "wait" in kind.__dict__:
            self._wrap_wait(kind)
        for name in WAYS:
            if callable(kind.__dict__.get(name)):
                self._replace(kind, name, self._settling(name, getattr(kind, name)))

    def _settling(self, name: str, real: Callable) -> Callable:
        @functools.wraps(real)
        @_unseen
        def settling(work, *args, **kwargs):
            result = real(work, *args, **kwargs)
            if (under_way := self.works.get(id(work))) and (
                result is True or name != "is_completed"
            ):
                under_way.is_settled = True
            return result

        return settling

    def _enter(self, name: str, given: dict, place: tuple[str, int, str]) -> "_Noted | None":
        """None where this rank has no part in the call, which then does nothing."""
        try:
            read = self.reader.read(name, given, place)
        except Exception:  # arguments that we cannot read are torch's to refuse
            file, line, function = place
            read = None, What(name, file=file, line=line, function=function)
        if read is None:
            return None
        seq, what = read
        if what.gaps:
            self.sink.notice("gaps", what, None)
        return _Noted(self.sink.enter(seq, None, what, given), seq, what)

    @_unseen
    def _call(self, noted: "_Noted", real: Callable, args: tuple, kwargs: dict):
        self.inside.call = True
        try:
            return real(*args, **kwargs)
        except BaseException as error:
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            self.sink.leave(noted.number, told, None)
            if was_refused(told):
                self.reader.take_back(noted.seq, noted.what)
            raise
        finally:
            self.inside.call = False

    def _follow(self, work, noted: "_Noted", given: dict) -> None:
        """Wait with it for its end."""
        key, kept = id(work), given if self.sink.tensors else {}
        self.works[key] = UnderWay(work, noted, kept, given, lambda _: self._gone(key))
        if type(work) not in self.kinds:
            self._wrap_work(type(work))


def _source(what: What, work) -> int | None:
    """The global rank whose message came; None where the backend does not say."""
    with contextlib.suppress(Exception):
        return what.members[work._source_rank()]
    return None


@contextlib.contextmanager
def recording(tensors: bool = False) -> Iterator[list[Call]]:
    """Note what this process calls inside the block; the list is filled when the block ends, also by an exception.

    `tensors`: keep copies of them, before and after each call.
    """
    calls: list[Call] = []
    memory = Memory(tensors)
    recording = Recording(memory)
    recording.begin()
    try:
        yield calls
    finally:
        recording.end()
        calls.extend(
            memory.calls(
                dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
            )
        )


def recorded(step: Callable, tensors: bool = False) -> Callable:
    """The same step for `launch`, with `(result, calls)` as its result."""

    def recorded_step(rank, world_size, device, *args):
        from collectives.recording import record

        with record.recording(tensors) as calls:
            result = step(rank, world_size, device, *args)
        return result, calls

    return functools.wraps(step)(recorded_step)
