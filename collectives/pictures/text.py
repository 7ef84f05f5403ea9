"""The same picture as text: for a terminal, and for readers who cannot see it."""

from itertools import groupby

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from collectives.pictures.colours import colour_of, ink
from collectives.pictures.data_panels import CallPanel
from collectives.pictures.origin import STATES, Origins, PictureCell, Row

_MADE = {"SUM": "sum of ", "AVG": "mean of ", "PRODUCT": "product of ", "MIN": "", "MAX": ""}


def text(call: CallPanel) -> Group:
    """The picture of a call for rich to print.

    Behind the values stand the ranks that they came from: `1 2 (r0)`, `1111 (sum of r0-r3)`. It can
    be read without colour.
    """
    origins = call.origins
    root = f"root: rank {origins.root}" if origins.root is not None else None
    head = ", ".join(filter(None, [call.caption, call.title, origins.op, root]))
    parts: list[RenderableType] = [Text(head, style="bold")] if head else []
    table = Table("", *map(escape, call.names), box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for rank, rows in enumerate(zip(origins.before, origins.after, strict=True)):
        name = f"rank {rank}" + " root" * (rank == origins.root)
        values = [_values(row, origins.op) for row in rows]
        if rank in call.absent:
            values = [Text("not in the group", style="dim"), Text()]
        table.add_row(Text(name, style=_style(rank), no_wrap=True), *values)
    parts.append(table)
    signs = {"undefined": "(none)", "unknown": "(?)"}
    states = [state for state in origins.states() if state in signs]
    parts += [Text(f"  {signs[state]}: {STATES[state]}") for state in states]
    return Group(*parts, *map(Text, (*origins.notes, *call.notes)))


def sentences(origins: Origins) -> str:
    """What was traced, in sentences."""
    found = [f"{len(origins.before)} ranks."]
    found += [f"The reduction is {origins.op}."] if origins.op else []
    found += [f"The root is rank {origins.root}."] if origins.root is not None else []
    for when, rows in (("Before", origins.before), ("After", origins.after)):
        found += [
            f"{when}, rank {rank} has {_row_in_words(row, rank)}." for rank, row in enumerate(rows)
        ]
    return " ".join([*found, *origins.notes])


def _row_in_words(row: Row, rank: int) -> str:
    if not row:
        return "no buffer" if row is None else "no element"
    groups = groupby(row, lambda cell: (cell.state, cell.ranks))
    return "; ".join(
        ", ".join(cell.text for cell in cells) + _origin(rank, *kind) for kind, cells in groups
    )


def _origin(rank: int, state: str, ranks: tuple[int, ...]) -> str:
    names = " and ".join(f"rank {rank}" for rank in ranks)
    endings = {
        "own": "" if ranks == (rank,) else f" from {names}",
        "untouched": " untouched",
        "overwritten": ", to be overwritten",
        "padding": f" of padding from {names}",
        "received": f" received from {names}",
        "reduced": f" reduced from {names}",
        "undefined": ", undefined",
        "unknown": " of unknown origin",
    }
    return endings[state]


def _values(row: Row, op: str | None) -> Text:
    """The values of a rank; behind those that came from the same ranks, these ranks."""
    if not row:
        return Text("no buffer" if row is None else "empty", style="dim")
    groups = groupby(row, lambda cell: _source(cell, op))
    return Text("  ").join(
        Text(" ").join([*map(_value, cells), Text(f"({source})", style="dim")])
        for source, cells in groups
    )


def _source(cell: PictureCell, op: str | None) -> str:
    if cell.state == "padding":
        return f"{cell.label}, padding"
    if not cell.ranks:
        return "none" if cell.state == "undefined" else "?"
    if len(cell.ranks) == 1:
        return cell.label
    made = _MADE.get(op or "", f"{op} of ") if cell.state == "reduced" and op else "from "
    return made + cell.label


def _value(cell: PictureCell) -> Text:
    """A value whose letters have the colours of its ranks in turn."""
    found = Text()
    for number, letter in enumerate(cell.text):
        rank = cell.ranks[number * len(cell.ranks) // len(cell.text)] if cell.ranks else None
        found.append(letter, style="" if rank is None else _style(rank))
    return found


def _style(rank: int) -> str:
    return f"{ink(colour_of(rank))} on {colour_of(rank)}"
