"""Which rank each value came from, of what the ranks held before a call and after it.

If every value is as the call promises, the promise says where it came from. Else the call went
wrong, or nothing is known of it, and values are compared: a value that only one rank held came from
that rank, and a reduced value from the ranks whose values reduce to it. If more than one answer
fits, the origin is unknown.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from collectives.pictures.elements import Element, elements, length
from collectives.pictures.promise import Made, Promise
from collectives.pictures.sources import OPS, Sources, is_reduction, state_of
from collectives.words import runs

MOST_RANKS = 8  # more colours cannot be told apart, and there are 255 subsets of ranks to try
MOST_ELEMENTS = 32  # of one rank; more cannot be read

# The states of a cell, and what they mean.
STATES = {
    "own": "the rank's own value",
    "untouched": "as it was before, in the same place",
    "overwritten": "replaced by the call",
    "padding": "not data: it makes all buffers equally long",
    "received": "another rank's value",
    "reduced": "made from the values of the ranks named",
    "undefined": "no rank's values give this",
    "unknown": "several ranks or sums give this value",
}


@dataclass(frozen=True)
class PictureCell:
    """One element of one rank."""

    text: str  # the value, short enough for a cell
    piece: int  # which of the rank's tensors it lies in, from 0
    state: str  # one of STATES
    ranks: tuple[int, ...] = ()  # whose values it is made from; empty if that is not certain
    line: int = 0  # the row of a matrix

    @property
    def label(self) -> str:
        """The ranks in short: "r2", "r0-r2, r4"; "r?" if not known, "" if there are none."""
        if not self.ranks:
            return "" if self.state == "undefined" else "r?"
        return ", ".join(f"r{run.replace('-', '-r')}" for run in runs(self.ranks))


Row = tuple[PictureCell, ...] | None  # None: the rank has no such buffer
# Of each element that each rank has before a call, the ranks that an earlier call made it from.
Carried = list[list[tuple[int, ...]]]


@dataclass(frozen=True)
class Origins:
    """What a picture shows, as a figure or as text."""

    op: str | None
    root: int | None
    before: tuple[Row, ...] = ()
    after: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()

    def states(self) -> list[str]:
        """The states that occur, in the order of STATES."""
        seen = {cell.state for row in self.before + self.after for cell in row or ()}
        return [state for state in STATES if state in seen]


def trace(
    before: list,
    after: list,
    *,
    op: str | None = None,
    root: int | None = None,
    in_place: bool = False,
    promise: Promise | None = None,
    asked: Sequence[str] = (),
    earlier: Sequence[Sequence[Row]] = (),
    padding: float | None = None,
) -> Origins | None:
    """Find where every element of `after` came from.

    `before` and `after` have one entry for each rank: a tensor of any shape and dtype, a list of
    tensors, or None if the rank has no such buffer. `in_place`: whether `after` has the same
    buffers as `before`. `promise`: what the call should have done, if its ranks agree. `asked`:
    the reductions, if they do not. `earlier`: what earlier calls of the run left on the ranks: a
    call that passes one of these results on shows where they came from. `padding`: the value that
    fills the end of a buffer. None if there are too many ranks or elements, or for another
    reduction.
    """
    lengths = [length(entry) for entry in (*before, *after)]
    ops = (op,) if op else tuple(asked)
    if len(before) > MOST_RANKS or max(lengths) > MOST_ELEMENTS or not {*ops} <= {*OPS}:
        return None
    old, new = _elements(before, promise, gives=True), _elements(after, promise, gives=False)
    kept = _kept(promise, before, old, new, op)
    sources = Sources(old, ops)
    carried = None if ops else _carried(old, earlier)
    pads = {(rank, place) for rank, row in enumerate(old) for place in _pads(row or [], padding)}

    def cell_before(rank, place, element):
        lost = in_place and new[rank] is not None
        if lost and (made := kept[rank]):
            lost = made[place] != [(rank, place)]
        elif lost:
            lost = _key_at(new[rank], place) != element.key
        state = "overwritten" if lost else "padding" if (rank, place) in pads else "own"
        ranks = carried[rank][place] if carried else (rank,)
        return PictureCell(element.text, element.piece, state, ranks, element.line)

    def cell_after(rank, place, element):
        if made := kept[rank]:
            found = _promised(rank, place, made[place], op, old, in_place)
            if carried:
                ((source, at),) = made[place]
                found = found[0], carried[source][at]
            if {*made[place]} <= pads:
                found = "padding", found[1]
        else:
            stayed = in_place and _key_at(old[rank], place) == element.key
            # subtle: try the elements at the same place first if the reduction is in place. Sums
            # of small numbers at other places may be equal by chance.
            same_place = place if ops and in_place else None
            found = sources.origin(rank, element, same_place, stayed)
        return PictureCell(element.text, element.piece, *found, element.line)

    rows = _rows(old, cell_before), _rows(new, cell_after)
    return Origins(op, root, *rows, notes=tuple(_notes(op, rows[1])))


def _elements(entries: list, promise: Promise | None, gives: bool) -> list[list[Element] | None]:
    return [
        elements(entry, promise.lengths(rank, entry, len(entries), gives) if promise else ())
        for rank, entry in enumerate(entries)
    ]


def _kept(
    promise: Promise | None, before: list, old: list, new: list, op: str | None
) -> list[list[Made] | None]:
    """By rank, what its elements are made from; None for a rank that was promised nothing.

    If one value is not as promised, nothing is said of any rank: the call went wrong.
    """
    nothing: list[list[Made] | None] = [None] * len(old)
    if promise is None:
        return nothing
    try:
        found = [promise.made(before, rank) for rank in range(len(old))]
    except (ValueError, IndexError, TypeError):  # the buffers of the ranks do not fit together
        return nothing
    for row, made in zip(new, found, strict=True):
        if made is None:
            continue
        if row is None or len(row) != len(made):
            return nothing
        for element, sources in zip(row, made, strict=True):
            values = [old[rank][place] for rank, place in sources]
            if not (is_reduction(op, values, element) if op else values[0].key == element.key):
                return nothing
    return found


def _pads(row: list[Element], value: float | None) -> Iterator[int]:
    """The places at the end of a rank's buffer that have this value."""
    for place in reversed(range(len(row))):
        if value is None or row[place].value != value:
            return
        yield place


def _carried(old: list, earlier: Sequence[Sequence[Row]]) -> Carried | None:
    """What is known of the values before a call: they are the result of an earlier one."""
    texts = [[element.text for element in row or ()] for row in old]
    for rows in reversed(earlier):
        if texts == [[cell.text for cell in row or ()] for row in rows]:
            return [[cell.ranks for cell in row or ()] for row in rows]
    return None


def _promised(
    rank: int, place: int, made: Made, op: str | None, old: list, in_place: bool
) -> tuple[str, tuple[int, ...]]:
    """The state of an element and its ranks; of a minimum or maximum, those that had it."""
    if op in ("MIN", "MAX"):
        choose = {"MIN": min, "MAX": max}[op]
        found = choose(old[source][at].value for source, at in made)
        made = [(source, at) for source, at in made if old[source][at].value == found]
    ranks = tuple(source for source, _ in made)
    return state_of(rank, ranks, in_place and made == [(rank, place)]), ranks


def _key_at(row: list[Element] | None, place: int):
    return row[place].key if row is not None and place < len(row) else None


def _rows(rows: list[list[Element] | None], make_cell: Callable) -> tuple[Row, ...]:
    return tuple(
        row if row is None else tuple(make_cell(rank, *place) for place in enumerate(row))
        for rank, row in enumerate(rows)
    )


def _notes(op: str | None, after: tuple[Row, ...]) -> Iterator[str]:
    cells = [cell for row in after for cell in row or ()]
    if any(cell.text.startswith("<") for cell in cells):
        yield "In < >: an object, whose way cannot be seen."
    if op in ("MIN", "MAX"):
        yield f"{op}: one rank's value, copied."
        if any(cell.state == "reduced" for cell in cells):
            yield "Stripes: several ranks had this value."
