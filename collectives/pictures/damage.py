"""What a mistake damaged: the values that each rank got, beside those that it should have got."""

import ast
from collections.abc import Iterator, Mapping
from itertools import groupby

from matplotlib.figure import Figure

from collectives.pictures.colours import DARK, LIGHT, WRONG, tint
from collectives.pictures.drawn_cell import cell_width
from collectives.pictures.elements import Element
from collectives.pictures.page import LINE, MARGIN, VALUE, WIDEST, Canvas, default_style

_LEFT, _BETWEEN, _CELL, _BELOW = MARGIN + 0.86, 0.6, 0.46, 0.11

# A value and whether it is as it should be; None where a line of a table ends.
Row = list[tuple[str, bool] | None]


def draw(found: Mapping[int, str], *, title: str = "") -> Figure | None:
    """The figure; None if the values are no numbers or text, or too many to be drawn.

    `found`: by rank, what `check` said: "got [50.0], should be [60.0]".
    """
    try:
        rows = {rank: _rows(text) for rank, text in sorted(found.items())}
    except (ValueError, SyntaxError):  # nan, or an object
        return None
    if not rows:
        return None
    cells = [cell for pair in rows.values() for row in pair for cell in row if cell]
    width = max([0.5, *(cell_width(text) for text, _ in cells)])
    spans = [max(_span(pair[at], width) for pair in rows.values()) for at in (0, 1)]
    page = max(_LEFT + spans[0] + _BETWEEN + spans[1] + MARGIN, 4.2)
    if page > WIDEST:
        return None
    figure = _drawn(rows, width, spans[0], page, title)
    words = (f"Rank {rank} {text}." for rank, text in sorted(found.items()))
    figure.set_label(" ".join([f"{title or 'What was damaged'}: what was damaged.", *words]))
    return figure


@default_style
def _drawn(rows: dict, width: float, span: float, page: float, title: str) -> Figure:
    top = MARGIN + 0.35 + LINE
    lines = [1 + max(row.count(None) for row in pair) for pair in rows.values()]
    bottom = top + _CELL * sum(lines) + _BELOW * len(rows)
    canvas = Canvas(page, bottom + LINE + MARGIN / 2)
    canvas.title(f"{title}: what was damaged")
    lefts = {"got": _LEFT, "should be": _LEFT + span + _BETWEEN}
    for name, x in lefts.items():
        canvas.write(x, top - 0.6 * LINE, name)
    y = top
    for (rank, pair), count in zip(rows.items(), lines, strict=True):
        canvas.chip(MARGIN, y + _CELL / 2, rank)
        for (name, x), row in zip(lefts.items(), pair, strict=True):
            gid = f"{name.split()[0]}/r{rank}"
            _row(canvas, x, y, width, row, gid, is_got=name == "got")
        y += _CELL * count + _BELOW
    got = [cell for row, _ in rows.values() for cell in row if cell]
    if not all(is_right for _, is_right in got):  # else nothing was got
        canvas.write(MARGIN, bottom + LINE / 2, "Red: not what it should be.")
    return canvas.figure


def _row(canvas: Canvas, x: float, y: float, width: float, row: Row, gid: str, is_got: bool):
    element, left = 0, x
    if not row:
        canvas.write(x, y + _CELL / 2, "nothing", style="italic")
    for cell in row:
        if cell is None:
            x, y = left, y + _CELL
            continue
        text, is_right = cell
        look = {"edgecolor": "#555555", "linewidth": 0.8}
        if is_got and not is_right:
            look = {"edgecolor": WRONG, "linewidth": 2.2, "zorder": 1.5}
        ground = tint(WRONG) if is_got and not is_right else LIGHT
        canvas.box(x, y, width, _CELL, ground, f"{gid}/e{element}", **look)
        canvas.write(x + width / 2, y + _CELL / 2, text, VALUE, DARK, ha="center", weight="bold")
        x, element = x + width, element + 1


def _span(row: Row, width: float) -> float:
    return width * max((len([*line]) for _, line in groupby(row, bool)), default=0)


def _rows(text: str) -> list[Row]:
    """What a rank got and what it should have got. ValueError, SyntaxError: these are no values."""
    got, _, expected = text.removeprefix("got ").partition(", should be ")
    values = [list(_flat(ast.literal_eval(part))) for part in (got, expected)]
    lists = [[*one, *[None] * (max(map(len, values)) - len(one))] for one in values]
    right = [a == b for a, b in zip(*lists, strict=True)]
    return [
        [
            None if value is _GAP else (Element(value).text, is_right)
            for value, is_right in zip(one, right, strict=False)
        ]
        for one in values
    ]


_GAP = object()  # between the lines of a table


def _flat(value) -> Iterator:
    """The single values, with a _GAP between the lists in a list."""
    if not isinstance(value, list):
        yield value
        return
    for number, part in enumerate(value):
        if number and isinstance(part, list):
            yield _GAP
        yield from _flat(part)
