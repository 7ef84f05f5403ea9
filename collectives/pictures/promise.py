"""What a collective promises: the elements that each element of its result is made from.

The record of the call says it: which ranks give and which get, and which buffers have a piece for
each rank. A picture of a call that kept its promise needs no guess by values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from collectives.pictures.elements import length
from collectives.semantics.calls import FROM_ROOT, TO_ROOT, BufferSpec, CallSpec, Layout

# The elements that one element is made from, as (rank, place): one of each rank in a reduction.
Made = list[tuple[int, int]]


@dataclass(frozen=True)
class Promise:
    """A collective of all ranks but `absent`. `splits`: by rank, as `Call.splits` has them."""

    spec: CallSpec
    root: int | None = None
    splits: Sequence[tuple | None] = ()
    absent: Sequence[int] = ()

    def lengths(self, rank: int, entry, ranks: int, gives: bool) -> list[int]:
        """How many elements the pieces of a rank's buffer have, in order."""
        buffer = self._buffer(gives)
        if entry is None or buffer.layout is Layout.ONE:
            return [length(entry)]
        if buffer.layout is Layout.LIST:
            return [length(part) for part in entry]
        split = self.splits[rank] if self.splits else None
        sizes = split[1 if gives else 0] if split else None
        sizes = sizes or [1] * (ranks - len(self.absent))
        return [length(entry) * size // max(1, sum(sizes)) for size in sizes]

    def made(self, given: list, rank: int) -> list[Made] | None:
        """What each element that the rank gets is made from; None if it gets nothing."""
        if rank in self.absent or (self.spec.name in TO_ROOT and rank != self.root):
            return None
        members = [rank for rank in range(len(given)) if rank not in self.absent]
        givers = members if self.spec.name not in FROM_ROOT else [self.root or 0]
        pieces = [self._piece(giver, given, rank) for giver in givers]
        if self.spec.reduces:
            return [list(column) for column in zip(*pieces, strict=True)]
        return [[element] for piece in pieces for element in piece]

    def _piece(self, giver: int, given: list, rank: int) -> list[tuple[int, int]]:
        """The elements that `giver` has for a rank."""
        ends = [0, *accumulate(self.lengths(giver, given[giver], len(given), gives=True))]
        place = rank - sum(one < rank for one in self.absent)
        piece = 0 if self._buffer(gives=True).layout is Layout.ONE else place
        return [(giver, place) for place in range(ends[piece], ends[piece + 1])]

    def _buffer(self, gives: bool) -> BufferSpec:
        return next(one for one in self.spec.buffers if (one.gives if gives else one.gets))
