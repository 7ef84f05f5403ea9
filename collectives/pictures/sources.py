"""Which ranks can have made a value: one that held it, or several whose values reduce to it."""

import functools

from collectives.pictures.elements import Element, is_number
from collectives.pictures.reductions import equal, reductions

# A set of ranks whose values, alone or reduced, give a value.
_Ranks = frozenset[int]


class Sources:
    """`rows` holds the elements of each rank before the call; `op` is the reduction, if any."""

    def __init__(self, rows: list[list[Element] | None], op: str | None):
        self.rows = rows
        self.reductions = list(reductions(rows, op)) if op else []
        self.holders = functools.cache(self._holders)
        self.sets = functools.cache(self._sets)

    def origin(
        self, rank: int, element: Element, place: int | None, kept: bool
    ) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """The state of a rank's element, the ranks that made it, and those that perhaps did.

        Elements at other places are tried only if those at `place` cannot have made it (None: all
        places at once). `kept`: the element was there before the call.
        """
        if not element.traceable:
            return "unknown", (), ()
        if kept and self.holders(element, None) == {frozenset({rank})}:
            return "untouched", (rank,), ()
        sets = self.sets(element, place) or self.sets(element, None)
        if not sets:
            return "undefined", (), ()
        certain = frozenset.intersection(*sets)
        perhaps = frozenset.union(*sets) - certain
        # Unless each of the others can be added alone, the sets are different answers.
        one_answer = {certain, *(certain | {other} for other in perhaps)}
        if not certain or not one_answer <= sets:
            return "untouched" if kept else "unknown", (), ()
        state = _state(rank, certain, perhaps, kept)
        return state, tuple(sorted(certain)), tuple(sorted(perhaps))

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


def _state(rank: int, certain: _Ranks, perhaps: _Ranks, kept: bool) -> str:
    if len(certain) > 1 or perhaps:
        return "reduced"
    if rank not in certain:
        return "received"
    return "untouched" if kept else "own"
