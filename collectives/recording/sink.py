"""Where a recording writes its calls: the interface, and a sink that keeps them in memory.

Another sink is `rank_log.Log`, which writes them to a file.
"""

import itertools
import time
import weakref
from typing import Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .call import Call, CallArgs, RiskyCall


class Sink(Protocol):
    """Takes the calls of one rank in order of entry.

    `enter` returns the call's number, by which `leave` and `done` speak of it.

    tensors: whether the sink wants to see the tensors again when a call is done. If not, the
        recording does not keep them alive.
    spans: whether it wants the program's own work, see `record.span`.
    functional: whether it wants the functional collectives.
    """

    tensors: bool
    spans: bool
    functional: bool

    def enter(
        self,
        seq: int | None,
        torch_seq: int | None,
        of: int | None,
        call_args: CallArgs,
        given: dict,
    ) -> int: ...

    def leave(self, number: int, error: str | None, source: int | None) -> None:
        """The call returned, or raised. `source`: for a receive, the global rank that sent."""

    def done(self, number: int, given: dict) -> None:
        """The tensors of a call hold their results. Only a sink with `tensors` is asked."""

    def notice(self, kind: str, call_args: CallArgs, at: tuple[str, int, str] | None) -> None:
        """Something risky; see call.RiskyCall."""


class Several:
    """Hands each call to all of these sinks; its number is the list of theirs."""

    def __init__(self, sinks: tuple[Sink, ...]):
        self.sinks = sinks
        self.tensors = any(sink.tensors for sink in sinks)
        self.spans = any(sink.spans for sink in sinks)
        self.functional = all(sink.functional for sink in sinks)

    def enter(self, seq, torch_seq, of, call_args, given):
        of = of or [None] * len(self.sinks)
        return [
            sink.enter(seq, torch_seq, one, call_args, given)
            for sink, one in zip(self.sinks, of, strict=True)
        ]

    def leave(self, number, error, source):
        for sink, one in zip(self.sinks, number, strict=True):
            sink.leave(one, error, source)

    def done(self, number, given):
        for sink, one in zip(self.sinks, number, strict=True):
            if sink.tensors:
                sink.done(one, given)

    def notice(self, kind, call_args, at):
        for sink in self.sinks:
            sink.notice(kind, call_args, at)


class Memory:
    """Keeps all calls, and copies of their tensors if `tensors` is true."""

    functional = False

    def __init__(self, tensors: bool = False):
        self.tensors = self.spans = tensors
        self.numbers = itertools.count()
        self.notes: dict[int, dict] = {}
        self.noticed: dict[tuple, None] = {}  # in order

    def enter(self, seq, torch_seq, of, call_args, given):
        number = next(self.numbers)
        before = _copies(given) if self.tensors and of is None else None
        counted = {"seq": seq, "torch_seq": torch_seq, "of": of}
        note = self.notes[number] = {**counted, **vars(call_args), "before": before}
        note["entered"] = time.monotonic_ns()
        return number

    def leave(self, number, error, source):
        note = self.notes[number]
        note |= {"left": time.monotonic_ns(), "error": error, "source": source}
        if note["of"] is not None:
            self.notes[note["of"]]["source"] = source

    def done(self, number, given):
        self.notes[number]["after"] = _copies(given)

    def notice(self, kind, call_args, at):
        self.noticed[kind, call_args, at] = None

    def calls(self, rank: int) -> list[Call]:
        return [
            Call(rank=rank, number=number, **note) for number, note in sorted(self.notes.items())
        ]

    def risky_calls(self, rank: int) -> list[RiskyCall]:
        return [
            RiskyCall(kind, Call(rank=rank, **vars(call_args)), at)
            for kind, call_args, at in self.noticed
        ]


class RecordedCalls(list[CallArgs]):
    """What a rank has called, in order; see `record.note_calls`."""


class Noting:
    """Adds each call to a list, for as long as somebody else holds the list."""

    tensors, spans, functional = False, True, True

    def __init__(self, calls: RecordedCalls):
        self.calls = weakref.ref(calls)

    def enter(self, seq, torch_seq, of, call_args, given):
        if (calls := self.calls()) is not None:
            calls.append(call_args)
        return 0

    def leave(self, number, error, source): ...

    def done(self, number, given): ...

    def notice(self, kind, call_args, at): ...


def _copies(given: dict) -> dict:
    """Copies, on the CPU, of the tensors among the arguments.

    A program that counts operations or memory by a dispatch mode must not see them.
    """
    with _disable_current_modes():
        return {name: copy for name, value in given.items() if (copy := _copy(value)) is not None}


def _copy(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone().cpu()
    if isinstance(value, list | tuple) and value and isinstance(value[0], torch.Tensor | list):
        return [_copy(element) for element in value]
    return None
