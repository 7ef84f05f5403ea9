"""Where the numbers of docs/ranks.html are after every message of every algorithm."""

import functools
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

from collectives.algorithms import table
from collectives.algorithms.lockstep import Message, messages, play
from tools.ranks_program import CALLS, State
from tools.steps_page import per_machine

OPS: dict[str, Callable] = {
    "SUM": sum,
    "PRODUCT": functools.partial(functools.reduce, lambda a, b: a * b),
    "MIN": min,
    "MAX": max,
    "AVG": lambda values: sum(values) / len(values),
}


class Number(NamedTuple):
    """A number, and the ranks that it was made from, as bits."""

    value: int
    origin: int


class Piece(tuple):
    """The numbers that travel together; None in a place that is still empty."""

    op = "SUM"

    def __add__(self, other: "Piece") -> "Piece":  # type: ignore[override]
        return type(self)(self._reduced(a, b) for a, b in zip(self, other, strict=True))

    def _reduced(self, a: Number, b: Number) -> Number:
        value = OPS[self.op]([a.value, b.value])
        parts = [x for x in (a, b) if self.op not in ("MIN", "MAX") or x.value == value]
        return Number(value, functools.reduce(lambda bits, x: bits | x.origin, parts, 0))


def ways(state: State, before: list) -> dict[str, dict]:
    """By algorithm: `start`, what every rank's memory holds at first, and the `steps`.

    A number is [value, origin], and null where there is none yet. A message is [source, to, 1 if
    it is added to what is there, the places that it fills, and the numbers there afterwards].
    """
    known = CALLS[state.call].algorithms
    if not known:
        return {"message": _way(state, before, None, [_one_message(state)])}
    # What divides a sum is refused, and only some algorithms can have unequal pieces.
    names = [] if state.op == "AVG" else table.names(known, state.n)
    if state.splits not in ("", "even"):
        names = [name for name in names if table.ALGORITHMS[known][name].uneven]
    return {name: _by_algorithm(state, before, known, name) for name in names}


def _one_message(state: State) -> list[Message]:
    return [Message(0, 1, (0,), (0,), False)]


def _by_algorithm(state: State, before: list, known: str, name: str) -> dict:
    algorithm, n, per_node = table.find(known, name, state.n), state.n, per_machine(state.n)
    count = algorithm.pieces(n, 8 * state.length, per_node)
    held = 2 * count if known == "all_to_all" else count
    found = messages(lambda rank: algorithm.steps(rank, n, count, per_node), n, held)
    return _way(state, before, count, found)


def _way(state: State, before: list, count: int | None, found: list[list[Message]]) -> dict:
    """The schedule counts the ranks from the root on, and so are the pieces of all ranks there."""
    n, root = state.n, int(state.root or 0)
    kind = type("PieceOf", (Piece,), {"op": state.op})
    real = [(virtual + root) % n for virtual in range(n)]
    memory = [_memory(state, before, rank, count or 1, kind) for rank in range(n)]
    turned = CALLS[state.call].algorithms in ("gather", "scatter")
    order = real if turned else list(range(len(memory[0])))
    starts = [[0, *accumulate(map(len, row))] for row in memory]
    virtual = [[memory[rank][piece] for piece in order] for rank in real]
    steps = []
    for step, after in zip(found, play(found, virtual), strict=True):
        moved = []
        for message in step:
            to = real[message.to]
            places: list[int] = []
            numbers: list[Number | None] = []
            for piece in message.received:
                first = starts[to][order[piece]]
                places += range(first, first + len(after[message.to][piece]))
                numbers += after[message.to][piece]
            if places:
                moved.append([real[message.source], to, int(message.reduce), places, numbers])
        steps.append(moved)
    start = [[x for piece in row for x in piece] for row in memory]
    return {"start": start, "steps": [step for step in steps if step]}


def _memory(state: State, before: list, rank: int, count: int, kind: type) -> list[Piece]:
    """The pieces of a rank's memory, before the first message."""
    known, own = CALLS[state.call].algorithms, before[rank]
    parts = own if own and isinstance(own[0], list) else [own or []]
    pieces = [kind(Number(x, 1 << rank) for x in part) for part in parts]
    if known in ("all_reduce", "reduce", "broadcast", ""):
        return list(_split(pieces[0], count, kind))
    if known in ("gather", "all_gather"):
        empty = kind([None] * state.length)
        return [pieces[0] if peer == rank else empty for peer in range(state.n)]
    if known == "scatter":
        return pieces if own else [kind([None] * state.length)] * state.n
    if known == "reduce_scatter":
        return pieces if len(parts) > 1 else list(_split(pieces[0], state.n, kind))
    return pieces + [kind([None] * len(before[peer][rank])) for peer in range(state.n)]


def _split(piece: Piece, count: int, kind: type) -> Iterator[Piece]:
    """As torch's tensor_split: the first pieces may have one number more."""
    whole, rest = divmod(len(piece), count)
    ends = [0, *accumulate(whole + (number < rest) for number in range(count))]
    for begin, end in pairwise(ends):
        yield kind(piece[begin:end])
