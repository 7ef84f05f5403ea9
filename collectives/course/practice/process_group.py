"""Watch the process group while an exercise runs: what it may call, and what it sends.

By whatever name a program calls `torch.distributed`, the call ends in a method of ProcessGroup, or
it is an operator of torch, as a functional collective is. Operators are refused as a whole.
"""

from typing import Any, NoReturn

import torch
import torch.distributed as dist

from collectives.course.practice.exercise import MESSAGES, Exercise
from collectives.recording.counts import NAMES
from collectives.recording.pending_work import COMPLETION_METHODS
from collectives.semantics.calls import BY_NAME, POINT_TO_POINT

_OPERATORS = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class Misuse(RuntimeError):
    """The exercise is to be solved without this call, or it cannot work."""


class Sent:
    """What this rank has sent in a case, and the first call that the exercise forbids.

    subtle: a program that catches every exception catches Misuse, too, and `misuse` stays.
    """

    def __init__(self) -> None:
        self.misuse: str | None = None
        self.reset()

    def reset(self) -> None:
        self.messages = self.bytes = self.calls = self.reduced = 0
        self.started: dict[int, str] = {}  # calls whose Work nobody has waited for, by its id

    def refuse(self, why: str) -> NoReturn:
        self.misuse = why
        raise Misuse(why)

    @property
    def forgotten(self) -> str | None:
        """A call that it did not wait for: the result may be there, or not."""
        for name in self.started.values():
            return f"it does not wait for its {name}: call `wait()` of the Work that it returns"
        return None


SENT = Sent()  # a rank tries one exercise


class _Refused:
    """In place of the operators of a namespace."""

    def __init__(self, alone: str):
        self.alone = alone

    def __getattr__(self, name: str) -> Any:
        SENT.refuse(f"it calls the operator {name}: {self.alone}")


def watch(exercise: Exercise) -> Sent:
    """From now on forbidden calls raise Misuse, and messages are counted."""
    alone = f"write `{exercise.function}` with {', '.join(exercise.uses)} alone"
    for method in {*NAMES, *BY_NAME}:
        real = getattr(dist.ProcessGroup, method, None)
        if real is not None:
            setattr(dist.ProcessGroup, method, _watched(exercise, method, real, alone))
    for method in ("wait", *COMPLETION_METHODS):
        setattr(dist.Work, method, _settles(getattr(dist.Work, method)))
    for namespace in _OPERATORS if exercise.uses else ():
        setattr(torch.ops, namespace, _Refused(alone))
    return SENT


def _watched(exercise: Exercise, method: str, real: Any, alone: str) -> Any:
    name = NAMES.get(method, method)
    is_message = name in POINT_TO_POINT
    # A call may have a newer name.
    specs = {id(BY_NAME[use]) for use in exercise.uses if use in BY_NAME}
    allowed = not exercise.uses or id(BY_NAME.get(name)) in specs
    allowed = allowed or (is_message and bool({*MESSAGES} & {*exercise.uses}))

    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        if not allowed:
            SENT.refuse(f"it calls dist.{name}: {alone}")
        if is_message and method != "recv_anysource":
            verb, peer = "sends to" if method == "send" else "receives from", args[1]
            if peer == group.rank():
                SENT.refuse(f"it {verb} itself, which a rank cannot do")
            if not 0 <= peer < group.size():
                # gloo 2.13 does not look: the process hangs, or it dies of a signal.
                SENT.refuse(f"it {verb} rank {peer}: the last rank is {group.size() - 1}")
        SENT.calls += not is_message
        if method == "send":
            SENT.messages += 1
            SENT.bytes += sum(tensor.nbytes for tensor in args[0])
        if method == "allreduce":
            SENT.reduced += sum(tensor.nbytes for tensor in args[0])
        work = real(group, *args, **kwargs)
        if isinstance(work, dist.Work):
            SENT.started[id(work)] = f"i{name}" if is_message else name
        return work

    return call


def _settles(real: Any) -> Any:
    def method(work: Any, *args: Any, **kwargs: Any) -> Any:
        SENT.started.pop(id(work), None)
        return real(work, *args, **kwargs)

    return method
