"""The steps of an algorithm, as a rank logs them or as a schedule has them, to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collectives.algorithms import lockstep, table
from collectives.recording.counts import Count, counting
from collectives.semantics.check import check
from collectives.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class StepLog:
    """What a rank sends in each step of an algorithm, and which pieces it holds after it.

    It is drawn as `add` tells it. `messages` and `bytes`, which are printed, are not told: they are
    counted below the program, from what the block hands to the process group. The block fails if
    these are not the messages that will be drawn.

    `pieces` are tensors, of which the first numbers are drawn; None is a piece that is not there
    yet.

    >>> def step(rank, world_size, device):
    ...     x = torch.tensor([10**rank])
    ...     with StepLog([x]) as steps:
    ...         if rank == 0:
    ...             dist.send(x, dst=1)
    ...         else:
    ...             dist.recv(x, src=0)
    ...         steps.add([x], sent=0, to=1 if rank == 0 else None)
    ...     return steps
    >>> print(launch(step, 2)[0])
    1 message, 8 bytes
    """

    def __init__(self, pieces: Sequence):
        self.held = [[_first_number(piece) for piece in pieces]]
        self.sent: list[tuple[int | None, tuple[int, ...], tuple[int, ...]]] = []
        self.messages = self.bytes = 0
        self._counted = Count()

    def __enter__(self) -> StepLog:
        self._counting = counting()
        self._counts = self._counting.__enter__()
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self._counting.__exit__(kind, error, traceback)
        calls, received = self._counts.total("c10d"), self._counts["c10d.recv"]
        del self._counting, self._counts  # a rank returns this object, and these cannot be sent
        self.messages, self.bytes = calls.calls - received.calls, calls.bytes - received.bytes
        if error is None:
            check([self.messages, self.bytes], list(self._counted), "messages and bytes sent")

    def add(
        self,
        pieces: Sequence,
        sent: int | Sequence[int] = (),
        to: int | None = None,
        at: int | Sequence[int] | None = None,
    ) -> None:
        """After a step in which pieces of these numbers went to rank `to` (None: nothing went).

        They become, or are added to, the pieces `at` there: those of the same numbers, if left out.
        """
        numbers = _as_tuple(sent) if to is not None else ()
        self.held.append([_first_number(piece) for piece in pieces])
        self.sent.append((to, numbers, numbers if at is None else _as_tuple(at)))
        messages, nbytes = self._counted
        messages += bool(numbers)
        self._counted = Count(messages, nbytes + sum(pieces[number].nbytes for number in numbers))

    def __str__(self) -> str:
        return f"{counted(self.messages, 'message')}, {self.bytes} bytes"

    shows = "Who sends to whom in each step, and what every rank holds then"

    def draw(self, title: str, ranks: Sequence[StepLog]) -> Figure:
        held = list(zip(*(log.held for log in ranks), strict=True))
        messages = [
            [
                lockstep.Message(rank, to, sent, received, False)
                for rank, (to, sent, received) in enumerate(step)
                if to is not None and sent
            ]
            for step in zip(*(log.sent for log in ranks), strict=True)
        ]
        return _draw(held, messages, title)


class SchedulePlayback:
    """The steps of a whole world of `n` ranks, from a schedule: nothing is sent.

    `memory[rank]` are the numbers of its pieces at first, None where it has none. Printed as the
    number of steps and of messages.

    >>> memory = [[1, None, None], [None, 2, None], [None, None, 3]]
    >>> print(SchedulePlayback("all_gather", "ring", memory))
    2 steps, 6 messages
    """

    def __init__(self, collective: str, algorithm: str, memory: list[list], per_node: int = 1):
        n, pieces = len(memory), len(memory[0])
        chosen = table.find(collective, algorithm, n)
        self.messages = lockstep.messages(
            lambda rank: chosen.steps(rank, n, pieces, per_node), n, pieces
        )
        self.held = [memory, *lockstep.play(self.messages, memory)]

    def __str__(self) -> str:
        count = sum(map(len, self.messages))
        return f"{len(self.messages)} steps, {count} messages"

    shows = StepLog.shows

    def draw(self, title: str, ranks: Sequence[SchedulePlayback]) -> Figure:
        """Every rank returned the same."""
        return _draw(self.held, self.messages, title)


def _draw(held: Sequence, messages: Sequence[Sequence[lockstep.Message]], title: str) -> Figure:
    from collectives.pictures import algorithm_steps

    is_complete = all(value is not None for row in held[0] for value in row)
    return algorithm_steps.draw(held, messages, title, op="SUM" if is_complete else None)


def _first_number(piece):
    return None if piece is None else next(iter(piece.flatten()[:1].tolist()), None)


def _as_tuple(numbers: int | Sequence[int]) -> tuple[int, ...]:
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)
