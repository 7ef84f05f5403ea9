"""Count what an algorithm sends: messages and bytes of every rank.

>>> traffic("all_reduce", "ring", 4, nbytes=1024).sent
[1536, 1536, 1536, 1536]
"""

from typing import NamedTuple

from collectives.algorithms import table
from collectives.algorithms.lockstep import Message, messages
from collectives.semantics.calls import CALLS


class Traffic(NamedTuple):
    """For each rank: messages and bytes that it sent, and bytes that it received."""

    steps: int
    messages: list[int]
    sent: list[int]
    received: list[int]

    def busiest(self) -> int:
        """The most bytes that one rank sends, or receives: they set the least time."""
        return max(self.sent + self.received)


def array_bytes(collective: str, nbytes: int) -> int:
    """The bytes of the full array: a barrier has none, and its messages one byte."""
    return 1 if collective == "barrier" else nbytes


def sized_messages(
    collective: str, name: str, n: int, nbytes: int, per_node: int | None = None
) -> list[list[tuple[Message, int]]]:
    """The messages of each step, from the schedule, and their bytes.

    `nbytes` is the full array, as nccl-tests counts: for an all_gather, say, all that a rank has in
    the end. Messages of no bytes are not sent, and copies are no messages.
    """
    algorithm, per_node = table.find(collective, name, n), per_node or n
    nbytes = array_bytes(collective, nbytes)
    pieces = algorithm.pieces(n, nbytes, per_node)
    count = 2 * pieces if collective == "all_to_all" else pieces
    whole, rest = divmod(nbytes, pieces)
    sizes = [whole + (piece % pieces < rest) for piece in range(count)]
    return [
        [
            (message, size)
            for message in step
            if (size := sum(sizes[piece] for piece in message.sent))
            and message.to != message.source
        ]
        for step in messages(lambda rank: algorithm.steps(rank, n, pieces, per_node), n, count)
    ]


def traffic(
    collective: str, name: str, n: int, nbytes: int, per_node: int | None = None
) -> Traffic:
    steps = sized_messages(collective, name, n, nbytes, per_node)
    result = Traffic(len(steps), [0] * n, [0] * n, [0] * n)
    for message, size in (one for step in steps for one in step):
        result.messages[message.source] += 1
        result.sent[message.source] += size
        result.received[message.to] += size
    return result


def bus_factor(collective: str, n: int) -> float:
    """Bus bandwidth, as nccl-tests defines it, is the algorithm's bandwidth times this factor.

    It is the share of the full array that the busiest rank must send or receive, whatever the
    algorithm. So the bus bandwidth can be compared with that of the links.
    """
    factor = CALLS[collective].bus_factor
    if factor is None:
        raise ValueError(
            f"{collective} moves no data, or each rank as much as it likes: no bus bandwidth."
        )
    return factor(n)
