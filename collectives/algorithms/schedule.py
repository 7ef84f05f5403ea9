"""A schedule is an algorithm as data: the steps of a rank, in order.

In each step a rank sends some pieces of its memory to one rank and receives some from another, both
at once. All ranks take the steps together: what one sends in step 7, the other receives in step 7.

An algorithm is a function `schedule(rank, n)` for rank `rank` of `n`. `rank` may be a number or a
numpy array of ranks: then each field of a step is an array too, with one entry for each rank. So
the same text is executed by one rank, and simulated for thousands at once.

>>> [step.to for step in steps(ring.all_gather(0, 4))]
[1, 1, 1]
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

NOBODY = -1

# One number, or an array with a number for each rank.
Number = int | np.ndarray


class Run(NamedTuple):
    """`length` pieces in a row, from piece `start` on. After the last piece comes the first."""

    start: Number
    length: Number


class Step(NamedTuple):
    """Send pieces to rank `to`, and receive pieces from rank `source`, both at once.

    Either may be NOBODY. Pieces are the number of one piece, a Run, or a list of numbers. What
    arrives is added to what is there if `reduce` is true; otherwise it takes its place.

    subtle: a rank that sends to itself copies from some of its pieces to others.
    """

    to: Number
    source: Number
    send: "Pieces" = 0
    receive: "Pieces" = 0
    reduce: bool = False


# The pieces of a message: the number of one, a run, or a list of numbers.
Pieces = Number | Run | list[Any]


class Rounds(NamedTuple):
    """`number` steps with the same peers: only the pieces change. `step(k)` is step k of them."""

    number: int
    step: Callable[[int], Step]


Schedule = Iterable[Step | Rounds]


def steps(schedule: Schedule) -> Iterator[Step]:
    """The steps one by one."""
    for part in schedule:
        if isinstance(part, Rounds):
            yield from map(part.step, range(part.number))
        else:
            yield part


def numbers(which: Pieces, pieces: int) -> tuple[int, ...]:
    """The numbers of the pieces of a message."""
    if isinstance(which, Run):
        return tuple((int(which.start) + i) % pieces for i in range(int(which.length)))
    return tuple(map(int, which)) if isinstance(which, list) else (int(which),)


def when(condition: bool | np.ndarray, peer: Number) -> Number:
    """The peer where the condition holds, otherwise nobody."""
    return np.where(condition, peer, NOBODY)


def doubling(n: int) -> list[int]:
    """The distances 1, 2, 4, ... below n."""
    return [1 << k for k in range((n - 1).bit_length())]


def backwards(schedule: Schedule, reduce: bool = False) -> list[Step]:
    """The last step first, and whoever received now sends.

    A broadcast that runs backwards and adds what arrives is a reduce. A scatter is a gather.
    """

    def turned(step: Step) -> Step:
        return Step(step.source, step.to, step.receive, step.send, reduce)

    return [turned(step) for step in reversed(list(steps(schedule)))]


def among(
    schedule: Schedule,
    name: Callable[[Any], Number],
    members: Number = True,
) -> Iterator[Step | Rounds]:
    """A schedule for some ranks of a larger group.

    Its rank i is rank `name(i)` of the group. Ranks for which `members` is false do nothing.
    """

    def renamed(step: Step) -> Step:
        to, source = (
            np.where(members & (np.asarray(peer) != NOBODY), name(np.asarray(peer)), NOBODY)
            for peer in (step.to, step.source)
        )
        return step._replace(to=to, source=source)

    return (_each(renamed, part) for part in schedule)


def _each(change: Callable[[Step], Step], part: Step | Rounds) -> Step | Rounds:
    if isinstance(part, Step):
        return change(part)
    return Rounds(part.number, lambda k: change(part.step(k)))
