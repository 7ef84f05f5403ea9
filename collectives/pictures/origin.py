"""Which rank each value came from, found by comparing what the ranks held before a call and after it.

Nothing here knows what a collective is supposed to do. A value that one rank alone held came from that rank; a reduced value came
from the ranks whose values, reduced, give it. Where the values leave more than one answer, the answer is that they do not tell.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from collectives.pictures.elements import (
    Element,
    elements,
    first_elements,
    is_number,
    length,
    same_tensors,
)
from collectives.pictures.reductions import OPS, equal, reductions

MOST_RANKS = 8  # as many colours as can be told apart, and 255 subsets of ranks to try
MOST_ELEMENTS = 32  # of one rank; more cannot be read

# What can become of a cell: a sign for the terminal, and what it means.
STATES = {
    "own": (":", "the rank's own value"),
    "untouched": ("=", "as it was before, in the same place"),
    "overwritten": ("x", "replaced by the call"),
    "received": ("<", "another rank's value"),
    "reduced": ("+", "made from the values of the ranks named"),
    "undefined": ("!", "no rank's values give this"),
    "unknown": ("?", "cannot be traced to one rank"),
}


@dataclass(frozen=True)
class Cell:
    """One element of one rank."""

    text: str  # the value, short enough for a cell
    piece: int  # which of the rank's tensors it lies in, from 0
    state: str  # one of STATES
    ranks: tuple[int, ...] = ()  # whose values it is made from, as far as that is certain
    perhaps: tuple[
        int, ...
    ] = ()  # ranks that may have added a value which changes nothing, such as 0 to a SUM

    @property
    def label(self) -> str:
        """The ranks in few letters: "r2", "r0-3", "r0?,1-3"; "r?" where there is no telling, "" where there is no rank."""
        if not self.ranks:
            return "" if self.state == "undefined" else "r?"
        runs = []
        for rank in sorted(self.ranks + self.perhaps):
            if runs and runs[-1][-1] == rank - 1 and {rank, rank - 1} <= set(self.ranks):
                runs[-1].append(rank)
            else:
                runs.append([rank])
        names = (
            f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}{'?' * (run[0] in self.perhaps)}"
            for run in runs
        )
        return "r" + ",".join(names)


Row = tuple[Cell, ...] | None  # None: the rank has no such buffer


@dataclass(frozen=True)
class Origins:
    """What a picture shows, whichever way it is drawn. Where `summary` has lines, they take the place of the cells."""

    op: str | None
    root: int | None
    before: tuple[Row, ...] = ()
    after: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()

    def states(self) -> list[str]:
        """The states that occur, in the order of STATES."""
        seen = {cell.state for row in self.before + self.after for cell in row or ()}
        return [state for state in STATES if state in seen]


def trace(
    before: list, after: list, *, op=None, root: int | None = None, in_place: bool | None = None
) -> Origins:
    """Find where every element of `after` came from; the arguments are those of `picture.draw`."""
    name = _checked(before, after, op, root)
    lengths = [length(entry) for entry in (*before, *after)]
    if len(before) > MOST_RANKS or max(lengths) > MOST_ELEMENTS:
        return Origins(
            name,
            root,
            notes=(_too_large(len(before), max(lengths)),),
            summary=_summary(before, after),
        )
    if in_place is None:
        in_place = same_tensors(before, after)
    old, new = ([elements(entry) for entry in entries] for entries in (before, after))
    makers = _Makers(old, name)

    def traced(rank, place, element):
        kept = in_place and _key_at(old[rank], place) == element.key
        # subtle: a reduction in place is explained by the elements of the same place, if these can explain it: sums of small
        # numbers at other places may be equal by chance.
        return Cell(
            element.text,
            element.piece,
            *makers.verdict(rank, element, place if name and in_place else None, kept),
        )

    def given(rank, place, element):
        lost = in_place and new[rank] is not None and _key_at(new[rank], place) != element.key
        return Cell(element.text, element.piece, "overwritten" if lost else "own", (rank,))

    cells = [_rows(elements, make) for elements, make in ((old, given), (new, traced))]
    return Origins(name, root, *cells, notes=tuple(_notes(name, *cells)))


def _key_at(row: list[Element] | None, place: int):
    return row[place].key if row is not None and place < len(row) else None


def _rows(entries: list, make) -> tuple[Row, ...]:
    return tuple(
        None
        if row is None
        else tuple(make(rank, place, element) for place, element in enumerate(row))
        for rank, row in enumerate(entries)
    )


class _Makers:
    """Which sets of ranks can have made a value: one rank that held it, or several whose values reduce to it."""

    def __init__(self, rows: list, op: str | None):
        self.rows = rows
        self.reductions = list(reductions(rows, op)) if op else []
        self.sets = functools.cache(self._sets)

    def verdict(
        self, rank: int, element: Element, place: int | None, kept: bool
    ) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """The state of a cell, the ranks that certainly made it, and those that perhaps did.

        Only if the ranks' elements at `place` cannot have made it are those at other places tried; None: all alike.
        """
        if not element.traceable:
            return "unknown", (), ()
        if kept and self.sets(element, None, moved=True) == {frozenset({rank})}:
            return "untouched", (rank,), ()
        sets = (place is not None and self.sets(element, place)) or self.sets(element, None)
        if not sets:
            return "undefined", (), ()
        certain = frozenset.intersection(*sets)
        perhaps = frozenset.union(*sets) - certain
        if not certain or not {certain, *(certain | {rank} for rank in perhaps)} <= sets:
            return "untouched" if kept else "unknown", (), ()
        alone = "received" if rank not in certain else "untouched" if kept else "own"
        state = "reduced" if len(certain) > 1 or perhaps else alone
        return state, tuple(sorted(certain)), tuple(sorted(perhaps))

    def _sets(
        self, element: Element, place: int | None, moved: bool = False
    ) -> set[frozenset[int]]:
        here = slice(None) if place is None else slice(place, place + 1)
        sets = {
            frozenset({rank})
            for rank, row in enumerate(self.rows)
            if any(one.key == element.key for one in (row or [])[here])
        }
        if is_number(element.value) and not moved:
            sets |= {
                ranks
                for at, ranks, result, error in self.reductions
                if place in (None, at) and equal(result, element, error)
            }
        return sets


def _checked(before, after, op, root) -> str | None:
    for name, entries in (("before", before), ("after", after)):
        if not isinstance(entries, list | tuple):
            raise ValueError(
                f"{name} is a {type(entries).__name__}: give a list with one entry for each rank."
            )
    if len(before) != len(after) or not before:
        raise ValueError(
            f"before has {len(before)} ranks and after {len(after)}: give both of every rank, None for no buffer."
        )
    if root is not None and (
        isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < len(before)
    ):
        raise ValueError(
            f"root={root!r} is not one of the {len(before)} ranks: use 0 to {len(before) - 1}."
        )
    name = None if op is None else str(getattr(op, "name", op)).upper()
    if name not in (None, *OPS):
        raise ValueError(
            f"op={op!r} cannot be traced: use one of {', '.join(OPS)}, or leave op out."
        )
    return name


def _notes(op: str | None, before: tuple[Row, ...], after: tuple[Row, ...]) -> Iterator[str]:
    cells = [cell for row in after for cell in row or ()]
    if not any(before) and not any(after):
        yield "No rank has an element: there is nothing to draw."
    if any(cell.label == "r?" and not cell.text.startswith("<") for cell in cells):
        yield "r?: more than one answer fits, so the value cannot be traced. Values that occur once, such as 10 ** rank, can be."
    if any(cell.text.startswith("<") for cell in cells):
        yield "What stands in < > is neither a number nor text, and cannot be traced either."
    if any(cell.perhaps for cell in cells):
        yield "A rank with ? may have taken part or not: the values do not tell."
    if op in ("MIN", "MAX"):
        yield f"{op} passes one rank's value on. The ranks whose values it was compared with leave no trace."


def _too_large(ranks: int, longest: int) -> str:
    if ranks > MOST_RANKS:
        return f"{ranks} ranks: no more than {MOST_RANKS} can be drawn, and traced to their ranks. This is a summary."
    return f"{longest} elements in one rank: no more than {MOST_ELEMENTS} can be drawn, and traced. This is a summary."


def _summary(before: list, after: list) -> tuple[str, ...]:
    """A line for each rank; of many ranks the first and the last."""
    lines = [
        f"rank {rank}: {_begins(old)} -> {_begins(new)}"
        for rank, (old, new) in enumerate(zip(before, after, strict=True))
    ]
    left_out = len(lines) - 2 * MOST_RANKS
    if left_out > 0:
        lines[MOST_RANKS:-MOST_RANKS] = [f"... {left_out} more ranks ..."]
    return tuple(lines)


def _begins(entry) -> str:
    if entry is None:
        return "no buffer"
    shown = [element.text for element in first_elements(entry, 3)]
    more = length(entry) - len(shown)
    return "[" + ", ".join(shown + [f"... {more} more"] * (more > 0)) + "]"
