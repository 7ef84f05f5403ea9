"""Watch the process group while an exercise runs: what it may call, and what it sends.

Nearly every way to call `torch.distributed` ends in a method of ProcessGroup or of a Backend, or it
is an operator of torch, as a functional collective is. Operators are refused as a whole. Who wants
to get around this can, as program and watch share a process: it is a help, and no examination.

>>> SENT.messages, SENT.calls
(0, 0)
"""

import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from collectives.course.practice.exercise import Exercise
from collectives.recording.counts import NAMES, name_of
from collectives.recording.pending_work import COMPLETION_METHODS
from collectives.semantics.calls import BY_NAME, POINT_TO_POINT

_OPERATORS = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
IMPORT = "<frozen importlib._bootstrap>"  # the file of a frame that imports a module
_CLASSES: tuple[Any, ...] = (dist.ProcessGroup, torch._C._distributed_c10d.Backend)


class Misuse(RuntimeError):
    """The exercise is to be solved without this call, or it cannot work."""


class Sent:
    """What this rank has sent in a case, and the first call that the exercise forbids.

    made: calls that it has begun and ended, in all cases. too_early: why it must not wait yet, if
    so. tell: is told of a Work that is gone before anybody waited for it. subtle: a program that
    catches every exception catches Misuse, too, and `misuse` stays.
    """

    def __init__(self) -> None:
        self.misuse: str | None = None
        self.tell: Callable[[str | None], None] = lambda problem: None
        self.made = 0
        self.reset()

    def reset(self) -> None:
        self.messages = self.bytes = self.calls = self.reduced = 0
        self.too_early: str | None = None
        # Calls whose Work nobody has waited for, by number: name, and line. subtle: not by the id
        # of the Work, which another one may get when this one is gone.
        self.started: dict[int, tuple[str, int]] = {}
        self.numbers: weakref.WeakKeyDictionary[dist.Work, int] = weakref.WeakKeyDictionary()

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
        if self.too_early:
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


def _frames() -> Iterator[FrameType]:
    """From the caller of this module outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            yield frame
        frame = frame.f_back


class _Refused:
    """In place of the operators of a namespace. What a library does while it is imported is its own
    affair.
    """

    def __init__(self, operators: Any, file: str, alone: str):
        self.operators, self.file, self.alone = operators, file, alone

    def __getattr__(self, name: str) -> Any:
        for frame in _frames():
            if frame.f_code.co_filename == IMPORT:
                break
            if frame.f_code.co_filename == self.file:
                SENT.refuse(f"it calls the operator {name}: {self.alone}")
        return getattr(self.operators, name)


def watch(exercise: Exercise, file: str) -> Sent:
    """From now on forbidden calls raise Misuse, and messages are counted. `file`: the reader's."""
    for owner in _CLASSES:
        for method in {*NAMES, *BY_NAME} & {*vars(owner)}:
            real = getattr(owner, method)
            setattr(owner, method, _watched(exercise, method, real, file))
    for method in ("wait", *COMPLETION_METHODS):
        setattr(dist.Work, method, _settles(getattr(dist.Work, method)))
    for name in _OPERATORS if exercise.uses else ():
        setattr(torch.ops, name, _Refused(getattr(torch.ops, name), file, exercise.rule))
    return SENT


def _watched(exercise: Exercise, method: str, real: Any, file: str) -> Any:
    name = name_of(method)
    is_message = name in POINT_TO_POINT
    # A call may have an older name.
    specs = {id(BY_NAME[use]) for use in exercise.uses if use in BY_NAME}
    allowed = not exercise.uses or id(BY_NAME.get(name)) in specs
    allowed = allowed or (is_message and exercise.sends)

    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        SENT.made += 1
        if not allowed:
            SENT.refuse(f"it calls dist.{name}: {exercise.rule}")
        if is_message and method != "recv_anysource":
            _check_peer("sends to" if method == "send" else "receives from", args[1], group)
        SENT.calls += not is_message
        if method == "send":
            SENT.messages += 1
            SENT.bytes += sum(tensor.nbytes for tensor in args[0])
        if method == "allreduce":
            SENT.reduced += sum(tensor.nbytes for tensor in args[0])
        work = real(group, *args, **kwargs)
        if isinstance(work, dist.Work):
            own = (frame.f_lineno for frame in _frames() if frame.f_code.co_filename == file)
            SENT.start(work, f"i{name}" if is_message else name, next(own, 0))
        return work

    return call


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
