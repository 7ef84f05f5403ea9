"""Which rank each value came from: compare what the ranks held before a call and after it.

Nothing here knows what a collective is supposed to do. A value that only one rank held came from
that rank. A reduced value came from the ranks whose values reduce to it. If more than one answer
fits, the origin is unknown.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from collectives.pictures.elements import (
    Element,
    elements,
    first_elements,
    length,
    same_tensors,
)
from collectives.pictures.reductions import OPS
from collectives.pictures.sources import Sources

MOST_RANKS = 8  # more colours cannot be told apart, and there are 255 subsets of ranks to try
MOST_ELEMENTS = 32  # of one rank; more cannot be read

# The states of a cell: a sign for the terminal, and what the state means.
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
    # Ranks that may have contributed a value that changes nothing, such as 0 to a SUM.
    perhaps: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The ranks in short: "r2", "r0-3", "r0?,1-3"; "r?" if not known, "" if there are none."""
        if not self.ranks:
            return "" if self.state == "undefined" else "r?"
        runs = []
        for rank in sorted(self.ranks + self.perhaps):
            if runs and runs[-1][-1] == rank - 1 and {rank, rank - 1} <= set(self.ranks):
                runs[-1].append(rank)
            else:
                runs.append([rank])
        return "r" + ",".join(map(self._run_label, runs))

    def _run_label(self, run: list[int]) -> str:
        if len(run) > 1:
            return f"{run[0]}-{run[-1]}"
        return f"{run[0]}?" if run[0] in self.perhaps else f"{run[0]}"


Row = tuple[Cell, ...] | None  # None: the rank has no such buffer


@dataclass(frozen=True)
class Origins:
    """What a picture shows, as a figure or as text. Lines in `summary` replace the cells."""

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
    """Find where every element of `after` came from. The arguments are those of `picture.draw`."""
    name = _checked(before, after, op, root)
    lengths = [length(entry) for entry in (*before, *after)]
    if len(before) > MOST_RANKS or max(lengths) > MOST_ELEMENTS:
        note = _too_large(len(before), max(lengths))
        return Origins(name, root, notes=(note,), summary=_summary(before, after))
    if in_place is None:
        in_place = same_tensors(before, after)
    old, new = ([elements(entry) for entry in entries] for entries in (before, after))
    sources = Sources(old, name)

    def cell_before(rank, place, element):
        lost = in_place and new[rank] is not None and _key_at(new[rank], place) != element.key
        return Cell(element.text, element.piece, "overwritten" if lost else "own", (rank,))

    def cell_after(rank, place, element):
        kept = in_place and _key_at(old[rank], place) == element.key
        # subtle: try the elements at the same place first if the reduction is in place. Sums of
        # small numbers at other places may be equal by chance.
        same_place = place if name and in_place else None
        return Cell(element.text, element.piece, *sources.origin(rank, element, same_place, kept))

    rows = _rows(old, cell_before), _rows(new, cell_after)
    return Origins(name, root, *rows, notes=tuple(_notes(name, *rows)))


def _key_at(row: list[Element] | None, place: int):
    return row[place].key if row is not None and place < len(row) else None


def _rows(rows: list[list[Element] | None], make_cell: Callable) -> tuple[Row, ...]:
    def cells(rank: int, row: list[Element]) -> Row:
        return tuple(make_cell(rank, place, element) for place, element in enumerate(row))

    return tuple(None if row is None else cells(rank, row) for rank, row in enumerate(rows))


def _checked(before, after, op, root) -> str | None:
    for name, entries in (("before", before), ("after", after)):
        if not isinstance(entries, list | tuple):
            raise ValueError(
                f"{name} is a {type(entries).__name__}: give a list with one entry for each rank."
            )
    if len(before) != len(after) or not before:
        raise ValueError(
            f"before has {len(before)} ranks and after {len(after)}: give both of every rank, "
            "None for no buffer."
        )
    is_rank = isinstance(root, int) and not isinstance(root, bool)
    if root is not None and not (is_rank and 0 <= root < len(before)):
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
        yield "More than one answer fits a value that cannot be traced."
    if any(cell.text.startswith("<") for cell in cells):
        yield "What stands in < > is neither a number nor text, and cannot be traced either."
    if any(cell.perhaps for cell in cells):
        yield "A pale stripe (?): this rank may have taken part, but its value changes nothing."
    if op in ("MIN", "MAX"):
        yield "MIN and MAX pass one rank's value on. The other ranks leave no trace."


def _too_large(ranks: int, longest: int) -> str:
    if ranks > MOST_RANKS:
        limit = f"{ranks} ranks: no more than {MOST_RANKS} can be drawn, and traced to their ranks."
    else:
        limit = (
            f"{longest} elements in one rank: "
            f"no more than {MOST_ELEMENTS} can be drawn, and traced."
        )
    return f"{limit} This is a summary."


def _summary(before: list, after: list) -> tuple[str, ...]:
    """A line for each rank. Of many ranks, only the first and the last."""
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
