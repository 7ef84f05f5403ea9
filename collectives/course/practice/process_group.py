"""Watch the process group while an exercise runs: what it may call, and what it sends.

Nearly every way to call `torch.distributed` ends in a method of ProcessGroup or of a Backend, or it
is an operator of torch, as a functional collective is. Where not all calls are allowed, the
functional form of an allowed call is counted as that call, and all other operators are refused. Who
wants to get around this can, as program and watch share a process: it is a help, and no
examination.

>>> SENT.messages, SENT.calls
(0, 0)
"""

import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from collectives.course.practice.exercise import Exercise
from collectives.recording.counts import NAMES, SILENT, name_of
from collectives.recording.pending_work import COMPLETION_METHODS
from collectives.semantics.calls import BY_NAME, POINT_TO_POINT

_OPERATORS = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
IMPORT = "<frozen importlib._bootstrap>"  # the file of a frame that imports a module
_FREE_AFTER = 0.2  # seconds
# Calls whose first argument is filled, and whose second is read; of the others it is one argument.
_TWO_BUFFERS = {name for name, spec in BY_NAME.items() if len(spec.buffers) == 2}
# Functions that are made of other calls, which may be allowed.
MADE_OF_CALLS = [
    name for name in BY_NAME if name.endswith(("_object", "_object_list", "_coalesced"))
]
# What copies numbers, by the names of torch's functions.
_COPYING = {
    *("clone", "contiguous", "copy_", "to", "tensor", "cat", "concat", "stack", "vstack", "hstack"),
    *("repeat", "index_select", "__getitem__"),
}
_CLASSES: tuple[Any, ...] = (dist.ProcessGroup, torch._C._distributed_c10d.Backend)


class Misuse(RuntimeError):
    """The exercise is to be solved without this call, or it cannot work."""


class Sent:
    """What this rank has sent in a case, and the first call that the exercise forbids.

    made: calls that it has begun and ended, in all cases. peers: by rank how this one has had to do
    with it, and in which line. held: the most bytes that it has kept of what others sent. groups:
    of each new_group, whether only its members need to call it. too_early: why it must not wait
    yet for the latest call, if so, where that has begun since there were `asked` calls. tell: is
    told of a Work that is gone before anybody waited for it. subtle: a program that catches every
    exception catches Misuse, too, and `misuse` stays.
    """

    def __init__(self) -> None:
        self.misuse: str | None = None
        self.tell: Callable[[str | None], None] = lambda problem: None
        self.made = 0
        self.reset()

    def reset(self, most_held: int | None = None) -> None:
        self.most_held = most_held
        self.messages = self.bytes = self.calls = self.reduced = self.held = 0
        self.peers: dict[int, str] = {}
        self.groups: list[bool] = []
        self.received: dict[int, tuple[StorageWeakRef, int]] = {}
        self.too_early: str | None = None
        self.asked = 0
        # Calls whose Work nobody has waited for, by number: name, and line. subtle: not by the id
        # of the Work, which another one may get when this one is gone.
        self.started: dict[int, tuple[str, int]] = {}
        self.numbers: weakref.WeakKeyDictionary[dist.Work, int] = weakref.WeakKeyDictionary()

    def note(self, name: str, given: Any, taken: Any, ranks: list[int], line: int) -> None:
        """A call with these other ranks: the tensors that it reads, and those that it fills."""
        is_message = name in POINT_TO_POINT
        nbytes = sum(tensor.nbytes for tensor in _tensors(given))
        self.messages += name == "send"
        self.calls += not is_message
        self.bytes += nbytes
        self.reduced += nbytes * (name == "all_reduce")
        if name != "recv":
            how = "sent to" if is_message else f"called {name} together with"
            self.peers |= {rank: f"it {how} rank {rank} (line {line})" for rank in ranks}
        for storage in (tensor.untyped_storage() for tensor in _tensors(taken)):
            self.received[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        if self.most_held is not None:
            # subtle: a thread of gloo may keep a tensor for a moment longer than the program.
            until = time.monotonic() + _FREE_AFTER
            while (held := self._kept()) > self.most_held and time.monotonic() < until:
                time.sleep(0.001)
            self.held = max(self.held, held)

    def keep_copies(self, made: Any, source: Any) -> None:
        """What is made by copying what others sent holds that, too."""
        storages = [tensor.untyped_storage() for tensor in _tensors(source)]
        came = [self.received[one._cdata][0] for one in storages if one._cdata in self.received]
        if any(not memory.expired() for memory in came):
            for storage in (tensor.untyped_storage() for tensor in _tensors(made)):
                self.received[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    def _kept(self) -> int:
        """Bytes of the memory into which it has received, and that is not free again."""
        return sum(nbytes for memory, nbytes in self.received.values() if not memory.expired())

    def refuse(self, why: str) -> NoReturn:
        self.misuse = why
        raise Misuse(why)

    def start(self, work: dist.Work, name: str, line: int) -> None:
        self.numbers[work] = self.made
        self.started[self.made] = name, line
        weakref.finalize(work, self._drop, self.made).atexit = False

    def _drop(self, number: int) -> None:
        if number in self.started:
            self.tell(self.forgotten)

    def settle(self, work: dist.Work) -> None:
        number = self.numbers.get(work, -1)
        if self.too_early and self.asked < number == max(self.started, default=0):
            self.refuse(self.too_early)
        self.started.pop(self.numbers.pop(work, -1), None)

    @property
    def forgotten(self) -> str | None:
        """The calls that it did not wait for: the result may be there, or not."""
        if not self.started:
            return None
        calls = [
            f"its {name} in line {line}" for name, line in dict.fromkeys(self.started.values())
        ]
        each = "each Work" if len(calls) > 1 else "the Work"
        return f"it does not wait for {' and '.join(calls)}: call `wait()` of {each}"


SENT = Sent()  # a rank runs one exercise


class Copies(TorchFunctionMode):
    """While it is active, a copy of what others sent counts as kept, except in these tensors."""

    def __init__(self, but: Any):
        super().__init__()
        self.but = {tensor.untyped_storage()._cdata for tensor in _tensors(but)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if SENT.received and getattr(func, "__name__", "") in _COPYING:
            made = [one for one in _tensors(result) if one.untyped_storage()._cdata not in self.but]
            SENT.keep_copies(made, list(args))
        return result


def _frames() -> Iterator[FrameType]:
    """From the caller of this module outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            yield frame
        frame = frame.f_back


class _Operators:
    """In place of those of a namespace: a functional collective is refused, or counted, as the call
    that it is, and all others are refused. What a library does while it is imported is its own
    affair.
    """

    def __init__(self, operators: Any, file: str, exercise: Exercise):
        self.operators, self.file, self.exercise = operators, file, exercise

    def __getattr__(self, name: str) -> Any:
        operator = getattr(self.operators, name)
        for frame in _frames():
            if frame.f_code.co_filename == IMPORT:
                break
            if frame.f_code.co_filename == self.file:
                if name in SILENT:
                    break
                is_functional = self.operators.name != "c10d"
                if not is_functional or not _is_allowed(self.exercise, name_of(name)):
                    SENT.refuse(f"it calls the operator {name}: {self.exercise.rule}")
                return functools.partial(self._counted, operator, name_of(name), frame.f_lineno)
        return operator

    def _counted(self, operator: Any, name: str, line: int, x: Any, *args: Any) -> Any:
        SENT.made += 1
        group = dist.distributed_c10d._resolve_process_group(args[-1])
        result = operator(x, *args)
        SENT.note(name, x, result, _others(group), line)
        SENT.made += 1
        return result


def watch(exercise: Exercise, file: str) -> Sent:
    """From now on forbidden calls raise Misuse, and messages are counted. `file`: the reader's."""
    for owner in _CLASSES:
        for method in {*NAMES, *BY_NAME} & {*vars(owner)}:
            real = getattr(owner, method)
            setattr(owner, method, _watched(exercise, method, real, file))
    for method in ("wait", *COMPLETION_METHODS):
        setattr(dist.Work, method, _settles(getattr(dist.Work, method)))
    for name in _OPERATORS if exercise.uses else ():
        setattr(torch.ops, name, _Operators(getattr(torch.ops, name), file, exercise))
    for name in MADE_OF_CALLS if exercise.uses else ():
        if name not in exercise.uses and hasattr(dist, name):
            refusing = _refused(exercise, name, getattr(dist, name), file)
            for module in (dist, dist.distributed_c10d):
                setattr(module, name, refusing)
    new_group = _recorded_group(dist.new_group)
    dist.new_group = dist.distributed_c10d.new_group = new_group
    return SENT


def _refused(exercise: Exercise, name: str, real: Any, file: str) -> Any:
    """Only to the reader's own file: torch itself and other libraries may use it."""

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code.co_filename == file:
            SENT.refuse(f"it calls dist.{name}: {exercise.rule}")
        return real(*args, **kwargs)

    return call


def _recorded_group(real: Any) -> Any:
    @functools.wraps(real)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        SENT.groups.append(bool(kwargs.get("use_local_synchronization")))
        return real(*args, **kwargs)

    return new_group


def _is_allowed(exercise: Exercise, name: str) -> bool:
    # A call may have an older name.
    specs = {id(BY_NAME[use]) for use in exercise.uses if use in BY_NAME}
    return (
        not exercise.uses
        or id(BY_NAME.get(name)) in specs
        or (name in POINT_TO_POINT and exercise.sends)
    )


def _watched(exercise: Exercise, method: str, real: Any, file: str) -> Any:
    name = name_of(method)
    is_message = name in POINT_TO_POINT
    allowed = _is_allowed(exercise, name)

    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        SENT.made += 1
        if not allowed:
            SENT.refuse(f"it calls dist.{name}: {exercise.rule}")
        if is_message and method != "recv_anysource":
            _check_peer("sends to" if method == "send" else "receives from", args[1], group)
        own = (frame.f_lineno for frame in _frames() if frame.f_code.co_filename == file)
        line = next(own, 0)
        taken, given, *_ = *args, (), ()
        if name not in _TWO_BUFFERS:
            taken, given = (() if method == "send" else taken), (() if name == "recv" else taken)
        ranks = [_ranks(group)[args[1]]] if method == "send" else _others(group)
        SENT.note(name, given, taken, ranks, line)
        work = real(group, *args, **kwargs)
        if isinstance(work, dist.Work):
            SENT.start(work, f"i{name}" if is_message else name, line)
        return work

    return call


def _ranks(group: Any) -> list[int]:
    """The members of a group; of a backend, their places."""
    try:
        return dist.get_process_group_ranks(group)
    except (KeyError, ValueError, TypeError):
        return list(range(group.size()))


def _others(group: Any) -> list[int]:
    return [rank for rank in _ranks(group) if rank != dist.get_rank()]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """A tensor, or all tensors in a list of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _check_peer(verb: str, peer: int, group: Any) -> None:
    if peer == group.rank():
        SENT.refuse(f"it {verb} itself, which a rank cannot do")
    if not 0 <= peer < group.size():
        # gloo 2.13 does not look: the process hangs, or it dies of a signal.
        SENT.refuse(f"it {verb} rank {peer}: the last rank is {group.size() - 1}")


def _settles(real: Any) -> Any:
    def method(work: Any, *args: Any, **kwargs: Any) -> Any:
        SENT.settle(work)
        try:
            return real(work, *args, **kwargs)
        finally:
            SENT.made += 1

    return method
