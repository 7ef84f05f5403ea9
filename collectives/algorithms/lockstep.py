"""All ranks' steps together, in one process: the interpreter for drawing and counting.

It moves no tensors. A test uses it to prove schedules right without running them.

>>> messages(lambda rank: ring.all_gather(rank, 3), n=3, pieces=3)[0][0]
Message(source=0, to=1, sent=(0,), received=(0,), reduce=False)
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from collectives.algorithms.schedule import NOBODY, Schedule, Step, numbers, steps


class Message(NamedTuple):
    """Rank `source` sends pieces `sent` to rank `to`, which puts or adds them at `received`."""

    source: int
    to: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
    reduce: bool


def messages(schedule: Callable[[int], Schedule], n: int, pieces: int) -> list[list[Message]]:
    """The messages of each step. `schedule(rank)` is that of one rank.

    ValueError if one rank sends what no other receives in the same step, or the other way round.
    """
    ranks = [list(steps(schedule(rank))) for rank in range(n)]
    return [_matched(list(step), pieces, k) for k, step in enumerate(zip(*ranks, strict=True))]


def _matched(step: list[Step], pieces: int, k: int) -> list[Message]:
    found = []
    for rank, own in enumerate(step):
        if own.to != NOBODY:
            to = int(own.to)
            sent, received = (numbers(x, pieces) for x in (own.send, step[to].receive))
            if step[to].source != rank or len(sent) != len(received):
                raise ValueError(
                    f"step {k}: rank {rank} sends pieces {sent} to rank {to}, which receives "
                    f"pieces {received} from rank {step[to].source}"
                )
            found.append(Message(rank, to, sent, received, step[to].reduce))
        if own.source != NOBODY and step[int(own.source)].to != rank:
            raise ValueError(f"step {k}: rank {rank} waits for rank {own.source}, which sends none")
    return found


def play(steps: list[list[Message]], memory: list[list[Any]]) -> Iterator[list[list[Any]]]:
    """What every rank holds after each step: `memory[rank][piece]`, of anything that has a +."""
    for step in steps:
        before, memory = memory, [list(row) for row in memory]
        for message in step:
            for sent, received in zip(message.sent, message.received, strict=True):
                arrived = before[message.source][sent]
                if message.reduce:
                    arrived = before[message.to][received] + arrived
                memory[message.to][received] = arrived
        yield memory
