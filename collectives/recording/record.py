"""Note each call that a rank makes to torch.distributed: its name, arguments, caller and times.

The public functions are wrapped in place, in `torch.distributed` and where they are defined, and so
is `Work.wait`. The call itself does what it does without us. Calls that torch makes inside it
(all_gather_object calls all_gather) are not noted. Of `batch_isend_irecv` and `new_subgroups` the
calls that they consist of (isend, irecv, new_group) are noted one by one.
"""

import contextlib
import functools
import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..semantics.calls import BY_NAME, GROUPS, RECEIVES
from . import functional
from .call import SPAN, Call, CallArgs, was_refused
from .call_arguments import Parameters, Reader, wait_for
from .pending_work import COMPLETION_METHODS, PendingWork
from .sink import Memory, Noting, RecordedCalls, Several, Sink
from .stack import caller, way_here


class _RecordedCall(NamedTuple):
    sink: Sink
    number: int  # by which the sink knows the call
    seq: int | None
    torch_seq: int | None
    call_args: CallArgs


class _Inside(threading.local):
    """Whether this thread is inside a noted call. Calls that torch makes there are not noted."""

    call = False
    # In batch_isend_irecv, the calls that have begun, with their Works and arguments.
    batch: list[tuple[Any, "_RecordedCall", dict]] | None = None


# subtle: a warning counts frames to find the line to blame, and skips the frames whose file name
# contains "importlib" and "_bootstrap". With such a name for our wrappers, a warning from torch
# blames the caller's line, as it does without us.
_FILE_NAME = "<frozen importlib._bootstrap> collectives.recording.record"


def _hide_frame(function: Callable) -> Callable:
    """Decorate a wrapper, so that neither warnings nor torch.compile notice its frame."""
    function.__code__ = function.__code__.replace(co_filename=_FILE_NAME)
    # Older versions of torch do not have these names; there torch.compile decides for itself.
    with contextlib.suppress(AttributeError):
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


class Recorder:
    """The process's wrappers around torch.distributed, and the sinks that they write to."""

    def __init__(self) -> None:
        self.sinks: tuple[Sink, ...] = ()
        self.sink: Sink = Several(())  # which hands each call to all of them
        self.reader = Reader()
        self.inside = _Inside()
        self.is_forked = False  # this process has its groups from the rank that forked it
        # The calls whose Work nobody has waited for yet, by the Work's id.
        # subtle: a Work takes no attributes, and must not be kept alive.
        self.works: dict[int, PendingWork] = {}
        self.originals: list[tuple] = []
        self.work_types: set[type] = set()  # those that are wrapped

    def install(self) -> None:
        """Wrap what is not wrapped yet: an older torch may get names later. See torch_names."""
        for name in (*BY_NAME, "batch_isend_irecv"):
            real = getattr(c10d, name, None)  # an older torch lacks some
            if real is not None and not hasattr(real, "recorder"):
                wrapper = self._wrap(name, real) if name in BY_NAME else self._wrap_batch(real)
                wrapper.recorder = self  # type: ignore[attr-defined]
                for module in (c10d, dist):
                    if module.__dict__.get(name) is real:
                        self._replace(module, name, wrapper)
        if c10d.Work not in self.work_types:
            self._wrap_work(c10d.Work)
        if functional.MODULE in sys.modules:
            self.wrap_functional(sys.modules[functional.MODULE])

    def wrap_functional(self, module: Any) -> None:
        """Note the functional collectives, too. `module`: that of torch which defines them."""
        for name, (call, arguments) in functional.functions(module).items():
            real = getattr(module, name)
            if not hasattr(real, "recorder"):
                noting = self._wrap_functional(module, call, arguments, real)
                wrapper: Any = functional.wrapped(real, noting, module)
                wrapper.recorder = self
                self._replace(module, name, wrapper)

    def detach(self, sink: Sink) -> None:
        """The sink gets no more calls. Without sinks, torch is as it was."""
        self.set_sinks(*(other for other in self.sinks if other is not sink))
        if not self.sinks:
            for place, name, original in reversed(self.originals):
                setattr(place, name, original)
            self.originals.clear()
            self.work_types.clear()

    def set_sinks(self, *sinks: Sink) -> None:
        self.sinks = sinks
        self.sink = sinks[0] if len(sinks) == 1 else Several(sinks)

    def reset_after_fork(self) -> None:
        """Forget what the parent counted: this process is a forked child."""
        self.reader = Reader()
        self.works.clear()
        self.is_forked = dist.is_initialized()

    def note_unawaited(self) -> None:
        """Note each Work that nobody has waited for: the process ends."""
        for key in list(self.works):
            self._collected(key)

    def _collected(self, key: int) -> None:
        pending = self.works.pop(key, None)
        if pending is not None and not pending.is_settled:
            for recorded in (pending.recorded, *(recorded for recorded, _ in pending.others)):
                recorded.sink.notice("unawaited", recorded.call_args, None)

    def _replace(self, place, name: str, wrapper: Callable) -> None:
        self.originals.append((place, name, place.__dict__[name]))
        setattr(place, name, wrapper)

    def _wrap(self, name: str, real: Callable) -> Callable:
        parameters = Parameters(name, real)

        @functools.wraps(real)
        @_hide_frame
        def wrapper(*args, **kwargs):
            if self.inside.call:
                return real(*args, **kwargs)
            given = dict(zip(parameters.names, args, strict=False), **kwargs)
            recorded = self._enter(parameters, given, caller())
            if recorded is None:
                return real(*args, **kwargs)
            result = self._call(recorded, real, args, kwargs)
            source = result if isinstance(result, int) else None  # recv returns who sent
            recorded.sink.leave(recorded.number, None, source)
            if result is not None and isinstance(result, c10d.Work):
                self._follow(result, recorded, given)
            elif recorded.sink.tensors:
                recorded.sink.done(recorded.number, given)
            return result

        return wrapper

    def _wrap_functional(
        self, module: Any, call: str, arguments: Callable[..., dict], real: Callable
    ) -> Callable:
        public = next(getattr(c10d, name) for name in BY_NAME[call].names if hasattr(c10d, name))
        parameters = Parameters(call, public, is_functional=True)
        signature = inspect.signature(real)

        @_hide_frame
        def noting(*args, **kwargs):
            if self.inside.call or not self.sink.functional:
                return real(*args, **kwargs)
            recorded = None
            with contextlib.suppress(Exception):  # torch will refuse what we cannot read
                bound = signature.bind(*args, **kwargs)
                named = bound.arguments
                group = functional.group_of(module, named["group"], named.get("tag", ""))
                given = {"group": group, **arguments(group.size(), *bound.args)}
                given["way"] = way_here()
                recorded = self._enter(parameters, given, caller())
            if recorded is None:
                return real(*args, **kwargs)
            result = self._call(recorded, real, args, kwargs)
            recorded.sink.leave(recorded.number, None, None)
            return result

        return noting

    def _wrap_batch(self, real: Callable) -> Callable:
        """NCCL gives the program one Work for the whole batch, and gloo that of each call."""

        @functools.wraps(real)
        @_hide_frame
        def batch(*args, **kwargs):
            self.inside.batch = begun = []
            try:
                works = real(*args, **kwargs)
            finally:
                self.inside.batch = None
            if len(works) == 1 and begun and works[0] is not begun[0][0]:
                (_, recorded, given), *others = begun
                self._follow(works[0], recorded, given)
                self.works[id(works[0])].others = [
                    (recorded, given if recorded.sink.tensors else {})
                    for _, recorded, given in others
                ]
            else:
                for work, recorded, given in begun:
                    self._follow(work, recorded, given)
            return works

        return batch

    def _wrap_wait(self, work_type: Any) -> None:
        real = work_type.wait

        @functools.wraps(real)
        @_hide_frame
        def wait(work, *args, **kwargs):
            pending = None if self.inside.call else self.works.get(id(work))
            if pending is None:
                return real(work, *args, **kwargs)
            recorded, place = pending.recorded, caller()
            sink = recorded.sink
            if pending.was_written_to():
                sink.notice("changed", recorded.call_args, place)
            pending.is_settled = True
            call_args = wait_for(recorded.call_args, place)
            number = sink.enter(recorded.seq, recorded.torch_seq, recorded.number, call_args, {})
            waiting = _RecordedCall(sink, number, None, None, call_args)
            result = self._call(waiting, real, (work, *args), kwargs)
            source = _source(call_args, work) if recorded.call_args.name in RECEIVES else None
            sink.leave(number, None, source)
            self.works.pop(id(work), None)
            if sink.tensors:
                sink.done(recorded.number, pending.given)
            for recorded, given in pending.others:
                call_args = wait_for(recorded.call_args, place)
                numbers = recorded.seq, recorded.torch_seq, recorded.number
                sink.leave(sink.enter(*numbers, call_args, {}), None, None)
                if sink.tensors:
                    sink.done(recorded.number, given)
            return result

        self._replace(work_type, "wait", wait)

    def _wrap_work(self, work_type: type) -> None:
        self.work_types.add(work_type)
        if "wait" in work_type.__dict__:
            self._wrap_wait(work_type)
        for name in COMPLETION_METHODS:
            if callable(work_type.__dict__.get(name)):
                self._wrap_completion_method(work_type, name)

    def _wrap_completion_method(self, work_type: type, name: str) -> None:
        real = getattr(work_type, name)

        @functools.wraps(real)
        @_hide_frame
        def settling(work, *args, **kwargs):
            result = real(work, *args, **kwargs)
            is_done = result is True or name != "is_completed"
            if is_done and (pending := self.works.get(id(work))):
                pending.is_settled = True
            return result

        self._replace(work_type, name, settling)

    def _enter(
        self, parameters: Parameters, given: dict, place: tuple[str, int, str]
    ) -> _RecordedCall | None:
        """None where this rank is not a member of the group: then the call does nothing."""
        try:
            read = self.reader.read(parameters, given, place)
        except Exception:  # torch will refuse arguments that we cannot read
            file, line, function = place
            read = None, None, CallArgs(parameters.name, file=file, line=line, function=function)
        if read is None:
            return None
        seq, torch_seq, call_args = read
        sink = self.sink
        number = sink.enter(seq, torch_seq, None, call_args, given)
        recorded = _RecordedCall(sink, number, seq, torch_seq, call_args)
        if call_args.gaps:
            sink.notice("gaps", call_args, None)
        if call_args.shares:
            sink.notice("shares", call_args, None)
        if self.is_forked:
            self.is_forked = parameters.name not in GROUPS
            if self.is_forked:
                sink.notice("forked", call_args, None)
        return recorded

    @_hide_frame
    def _call(self, recorded: _RecordedCall, real: Callable, args: tuple, kwargs: dict):
        self.inside.call = True
        try:
            return real(*args, **kwargs)
        except BaseException as error:
            first_line = f"{type(error).__name__}: {error}".splitlines()[0]
            recorded.sink.leave(recorded.number, first_line, None)
            if was_refused(first_line):
                self.reader.take_back(recorded.seq, recorded.call_args)
            raise
        finally:
            self.inside.call = False

    def _follow(self, work, recorded: _RecordedCall, given: dict) -> None:
        """Keep an eye on the Work until somebody waits for it, or it is gone."""
        if self.inside.batch is not None:
            self.inside.batch.append((work, recorded, given))
            return
        key, kept = id(work), given if recorded.sink.tensors else {}
        self.works[key] = PendingWork(work, recorded, kept, given, lambda _: self._collected(key))
        if type(work) not in self.work_types:
            # A backend in Python may define `wait` once for several classes.
            for work_type in type(work).__mro__:
                if issubclass(work_type, c10d.Work) and work_type not in self.work_types:
                    self._wrap_work(work_type)


def _source(call_args: CallArgs, work) -> int | None:
    """The global rank that sent the message; None where the backend does not say."""
    with contextlib.suppress(Exception):
        return call_args.members[work._source_rank()]
    return None


def attach(sink: Sink) -> Recorder:
    """Give this sink each call from now on. Return the process's recorder, to detach it from.

    subtle: the recorder may be one of `_collectives_recorder`, the same files under another name.
    It is found at its wrappers, so that no function is ever wrapped twice.
    """
    recorder = getattr(c10d.all_reduce, "recorder", None)
    if recorder is None:
        recorder = Recorder()
        recorder.install()
    recorder.set_sinks(*recorder.sinks, sink)
    return recorder


@contextlib.contextmanager
def attached(sink: Sink) -> Iterator[None]:
    """The sink gets each call that this process makes inside the block."""
    recorder = attach(sink)
    try:
        yield
    finally:
        recorder.detach(sink)


@contextlib.contextmanager
def recording(tensors: bool = False) -> Iterator[list[Call]]:
    """Note what this process calls inside the block. The list is filled when the block ends.

    `tensors`: keep copies of the tensors, from before and after each call.
    """
    calls: list[Call] = []
    memory = Memory(tensors)
    try:
        with attached(memory):
            yield calls
    finally:
        rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
        calls.extend(memory.calls(rank))


def note_calls() -> list[CallArgs]:
    """From now on, note what this rank calls, in order, in the list that it returns.

    Each entry has the `name` of the call, or "wait" or "span", and its `peer`, `tag`, `members` and
    `tensors`. It ends when nobody holds the list any more, as when the function returns.

    >>> def step(rank, world_size, device):
    ...     calls = note_calls()
    ...     dist.all_reduce(torch.ones(4), async_op=True).wait()
    ...     return [call.name for call in calls]
    >>> launch(step, 2)[0]
    ['all_reduce', 'wait']
    """
    calls = RecordedCalls()
    sink = Noting(calls)
    weakref.finalize(calls, attach(sink).detach, sink).atexit = False
    return calls


@contextlib.contextmanager
def span(what: str) -> Iterator[None]:
    """The program's own work, such as "multiply", which a picture shows beside the calls.

    It is noted by `note_calls`, and where the calls are recorded with their tensors, as for
    pictures. What is called "late" is drawn until the other ranks may wait for this one.

    >>> def step(rank, world_size, device):
    ...     with span("multiply"):
    ...         x = torch.ones(64, 64) @ torch.ones(64, 64)
    ...     dist.all_reduce(x)
    >>> calls = launch(step, 2, record="tensors").calls
    >>> sorted({call.name for call in calls})
    ['all_reduce', 'span']
    """
    recorder = getattr(c10d.all_reduce, "recorder", None)
    sinks = [sink for sink in recorder.sinks if sink.spans] if recorder else []
    call_args = CallArgs(SPAN, awaited=what)
    numbers = [sink.enter(None, None, None, call_args, {}) for sink in sinks]
    try:
        yield
    finally:
        for sink, number in zip(sinks, numbers, strict=True):
            sink.leave(number, None, None)
