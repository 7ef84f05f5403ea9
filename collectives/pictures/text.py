"""The same picture as text: for a terminal, and for readers who cannot see it."""

from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from collectives.pictures.colours import colour_of, ink
from collectives.pictures.origin import STATES, Origins, PictureCell, Row


def text(origins: Origins, title: str = "") -> Group:
    """The picture for rich to print.

    A cell reads `1111+r0-3`: the value, a sign for its state, and the ranks that it came from. It
    can be read without colour.
    """
    facts = [title, origins.op, f"root: rank {origins.root}" if origins.root is not None else None]
    head = ", ".join(filter(None, facts))
    parts: list[RenderableType] = [Text(head, style="bold")] if head else []
    table = Table("", "before", "after", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for rank, rows in enumerate(zip(origins.before, origins.after, strict=True)):
        name = f"rank {rank}" + " root" * (rank == origins.root)
        table.add_row(Text(name, style=_style(rank), no_wrap=True), *map(_chips, rows))
    parts.append(table)
    parts += [
        Text(f"  {STATES[state][0]}  {state}: {STATES[state][1]}") for state in origins.states()
    ]
    return Group(*parts, *map(Text, origins.notes))


def sentences(origins: Origins) -> str:
    """What was traced, in sentences."""
    found = [f"{len(origins.before)} ranks."]
    found += [f"The reduction is {origins.op}."] if origins.op else []
    found += [f"The root is rank {origins.root}."] if origins.root is not None else []
    for when, rows in (("Before", origins.before), ("After", origins.after)):
        found += [f"{when}, rank {rank} has {_row_in_words(row)}." for rank, row in enumerate(rows)]
    return " ".join([*found, *origins.notes])


def _row_in_words(row: Row) -> str:
    if not row:
        return "no buffer" if row is None else "no element"
    groups = groupby(row, lambda cell: (cell.state, cell.ranks))
    return "; ".join(
        ", ".join(cell.text for cell in cells) + _origin(*kind) for kind, cells in groups
    )


def _origin(state: str, ranks: tuple[int, ...]) -> str:
    names = " and ".join(f"rank {rank}" for rank in ranks)
    endings = {
        "own": "",
        "untouched": " untouched",
        "overwritten": ", to be overwritten",
        "received": f" received from {names}",
        "reduced": f" reduced from {names}",
        "undefined": ", undefined",
        "unknown": " of unknown origin",
    }
    return endings[state]


def _chips(row: Row) -> Text:
    if not row:
        return Text("no buffer" if row is None else "empty", style="dim")
    return Text(" ").join(_chip(cell) for cell in row)


def _chip(cell: PictureCell) -> Text:
    """A cell whose letters have the colours of its ranks in turn.

    It has no blanks, so that lines break between cells.
    """
    letters = cell.text.replace(" ", "_") + STATES[cell.state][0] + cell.label.replace("r?", "")
    chip = Text()
    for number, letter in enumerate(letters):
        rank = cell.ranks[number * len(cell.ranks) // len(letters)] if cell.ranks else None
        chip.append(letter, style="" if rank is None else _style(rank))
    return chip


def _style(rank: int) -> str:
    return f"{ink(colour_of(rank))} on {colour_of(rank)}"
