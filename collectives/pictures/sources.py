"""Which ranks can have made a value: one that held it, or several whose values reduce to it."""

import functools
from collections.abc import Collection, Sequence

from collectives.pictures.elements import Element, is_number
from collectives.pictures.reductions import equal, reductions

# A set of ranks whose values, alone or reduced, give a value.
_Ranks = frozenset[int]


class Sources:
    """`rows` holds the elements of each rank before the call; `ops` are the reductions, if any."""

    def __init__(self, rows: list[list[Element] | None], ops: Sequence[str]):
        self.rows = rows
        self.ops = ops
        self.holders = functools.cache(self._holders)
        self.sets = functools.cache(self._sets)

    @functools.cached_property
    def reductions(self) -> list:
        return [one for op in self.ops for one in reductions(self.rows, op)]

    def origin(
        self, rank: int, element: Element, place: int | None, kept: bool
    ) -> tuple[str, tuple[int, ...]]:
        """The state of a rank's element, and the ranks that made it.

        Elements at other places are tried only if those at `place` cannot have made it (None: all
        places at once). `kept`: the element was there before the call.
        """
        if not element.traceable:
            return "unknown", ()
        if kept and self.holders(element, None) == {frozenset({rank})}:
            return "untouched", (rank,)
        sets = self.sets(element, place) or self.sets(element, None)
        if not sets:
            return "undefined", ()
        if len(sets) > 1:
            return "untouched" if kept else "unknown", ()
        (ranks,) = sets
        return state_of(rank, ranks, kept), tuple(sorted(ranks))

    def _holders(self, element: Element, place: int | None) -> set[_Ranks]:
        here = slice(None) if place is None else slice(place, place + 1)
        return {
            frozenset({rank})
            for rank, row in enumerate(self.rows)
            if any(other.key == element.key for other in (row or [])[here])
        }

    def _sets(self, element: Element, place: int | None) -> set[_Ranks]:
        if not is_number(element.value):
            return self.holders(element, place)
        return self.holders(element, place) | {
            ranks
            for at, ranks, result, error in self.reductions
            if place in (None, at) and equal(result, element, error)
        }


def state_of(rank: int, ranks: Collection[int], kept: bool) -> str:
    """The state of an element of this rank whose value these ranks made."""
    if len(ranks) > 1:
        return "reduced"
    if rank not in ranks:
        return "received"
    return "untouched" if kept else "own"
