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


class _Refused:
    """In place of the operators of a namespace."""

    def __init__(self, exercise: Exercise, sent: "Sent"):
        self.exercise, self.sent = exercise, sent

    def __getattr__(self, name: str) -> Any:
        _refuse(self.exercise, self.sent, f"the operator {name}")


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

    @property
    def forgotten(self) -> str | None:
        """A call that it did not wait for: the result may be there, or not."""
        name = next(iter(self.started.values()), None)
        return (
            name and f"it does not wait for its {name}: call `wait()` of the Work that it returns"
        )


SENT = Sent()  # a rank tries one exercise


def watch(exercise: Exercise) -> Sent:
    """From now on forbidden calls raise Misuse, and messages are counted."""
    sent = SENT
    for method in {*NAMES, *BY_NAME}:
        real = getattr(dist.ProcessGroup, method, None)
        if real is not None:
            setattr(dist.ProcessGroup, method, _watched(exercise, method, real, sent))
    for method in ("wait", *COMPLETION_METHODS):
        setattr(dist.Work, method, _settles(getattr(dist.Work, method), sent))
    for namespace in _OPERATORS if exercise.uses else ():
        setattr(torch.ops, namespace, _Refused(exercise, sent))
    return sent


def _refuse(exercise: Exercise, sent: Sent, what: str) -> NoReturn:
    uses = ", ".join(exercise.uses)
    sent.misuse = f"it calls {what}: write `{exercise.function}` with {uses} alone"
    raise Misuse(sent.misuse)


def _watched(exercise: Exercise, method: str, real: Any, sent: Sent) -> Any:
    name = NAMES.get(method, method)
    is_message = name in POINT_TO_POINT
    # A call may have a newer name.
    specs = {id(BY_NAME[use]) for use in exercise.uses if use in BY_NAME}
    allowed = not exercise.uses or id(BY_NAME.get(name)) in specs
    allowed = allowed or (is_message and bool({*MESSAGES} & {*exercise.uses}))

    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        if not allowed:
            _refuse(exercise, sent, f"dist.{name}")
        if is_message and method != "recv_anysource":
            verb, peer = "sends to" if method == "send" else "receives from", args[1]
            if peer == group.rank():
                sent.misuse = f"it {verb} itself, which a rank cannot do"
                raise Misuse(sent.misuse)
            if not 0 <= peer < group.size():
                # gloo 2.13 does not look: the process hangs, or it dies of a signal.
                sent.misuse = f"it {verb} rank {peer}: the last rank is {group.size() - 1}"
                raise Misuse(sent.misuse)
        sent.calls += not is_message
        if method == "send":
            sent.messages += 1
            sent.bytes += sum(tensor.nbytes for tensor in args[0])
        if method == "allreduce":
            sent.reduced += sum(tensor.nbytes for tensor in args[0])
        work = real(group, *args, **kwargs)
        if isinstance(work, dist.Work):
            sent.started[id(work)] = f"i{name}" if is_message else name
        return work

    return call


def _settles(real: Any, sent: Sent) -> Any:
    def method(work: Any, *args: Any, **kwargs: Any) -> Any:
        sent.started.pop(id(work), None)
        return real(work, *args, **kwargs)

    return method
