"""Where a recording tells its calls: what such a place offers, and the one in memory (call_log.Writer is one in a file)."""

import itertools
import time
from typing import Protocol

import torch

from .call import Call, What


class Sink(Protocol):
    """Where calls are told, in order of entry; the number that `enter` returns is what a call is spoken of by afterwards.

    `tensors`: whether it wants to see them again when the call is done. Else nothing here keeps them alive.
    """

    tensors: bool

    def enter(self, seq: int | None, of: int | None, what: What, given: dict) -> int: ...

    def leave(self, number: int, error: str | None, source: int | None) -> None:
        """The call returned, or raised. `source`: the global rank whose message a receive, or the wait for one, has brought."""

    def done(self, number: int, given: dict) -> None:
        """The tensors of a call hold their results. Not told without `tensors`."""

    def notice(self, kind: str, what: What, at: tuple[str, int, str] | None) -> None:
        """Something risky; see call.Noticed."""


class Memory:
    """Keeps all calls, with copies of their tensors if asked for."""

    def __init__(self, tensors: bool = False):
        self.tensors = tensors
        self.numbers = itertools.count()
        self.notes: dict[int, dict] = {}
        self.noticed: dict[tuple, None] = {}

    def enter(self, seq, of, what, given):
        number = next(self.numbers)
        before = _copies(given) if self.tensors and of is None else None
        note = self.notes[number] = {"seq": seq, "of": of, **vars(what), "before": before}
        note["entered"] = time.monotonic_ns()
        return number

    def leave(self, number, error, source):
        note = self.notes[number]
        note |= {"left": time.monotonic_ns(), "error": error, "source": source}
        if note["of"] is not None:
            self.notes[note["of"]]["source"] = source

    def done(self, number, given):
        self.notes[number]["after"] = _copies(given)

    def notice(self, kind, what, at):
        self.noticed[kind, what, at] = None

    def calls(self, rank: int) -> list[Call]:
        return [
            Call(rank=rank, number=number, **note) for number, note in sorted(self.notes.items())
        ]


def _copies(given: dict) -> dict:
    """The tensors among the arguments, copied as they lie in memory now, on the CPU."""
    return {name: copy for name, value in given.items() if (copy := _copy(value)) is not None}


def _copy(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone().cpu()
    if isinstance(value, list | tuple) and value and isinstance(value[0], torch.Tensor | list):
        return [_copy(one) for one in value]
    return None
