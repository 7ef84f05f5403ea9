"""What a mistake damaged: the values that each rank got, beside those that it should have got."""

import ast
from collections.abc import Mapping

from matplotlib.figure import Figure

from collectives.pictures.colours import GREY, LIGHT, WRONG, tint
from collectives.pictures.drawn_cell import cell_width
from collectives.pictures.elements import Element
from collectives.pictures.page import LINE, MARGIN, TOP, VALUE, WIDEST, Canvas, default_style

_LEFT, _BETWEEN, _CELL, _BELOW = MARGIN + 0.86, 0.6, 0.46, 0.11
_WRONG = {"edgecolor": WRONG, "linewidth": 2.2, "zorder": 1.5}


def draw(found: Mapping[int, str], *, title: str = "") -> Figure | None:
    """The figure; None if the values are no numbers or text, or too many to be drawn.

    `found`: by rank, what `check` said: "got [50.0], should be [60.0]".
    """
    try:
        rows = {rank: [*map(_lines, _values(text))] for rank, text in sorted(found.items())}
    except (ValueError, SyntaxError):  # nan, or an object
        return None
    if not rows:
        return None
    sides = [[line for pair in rows.values() for line in pair[side]] for side in (0, 1)]
    texts = [Element(value).text for lines in sides for line in lines for value in line]
    width = max([0.5, *map(cell_width, texts)])
    got, expected = (width * max(map(len, lines)) for lines in sides)
    page = max(_LEFT + got + _BETWEEN + expected + MARGIN, 4.2)
    if page > WIDEST:
        return None
    words = " ".join(f"Rank {rank} {text}." for rank, text in sorted(found.items()))
    return _drawn(rows, width, _LEFT + got + _BETWEEN, page, title, words)


@default_style
def _drawn(rows: dict, width: float, right: float, page: float, title: str, words: str) -> Canvas:
    canvas, y, has_wrong = Canvas(f"{title}: what was damaged", page), TOP + LINE, False
    canvas.write(_LEFT, y - 0.6 * LINE, "got")
    canvas.write(right, y - 0.6 * LINE, "should be")
    for rank, (got, expected) in rows.items():
        canvas.chip(MARGIN, y + _CELL / 2, rank)
        good = [*_places(expected)]
        for name, x, lines in (("got", _LEFT, got), ("should", right, expected)):
            if lines == [[]]:
                canvas.write(x, y + _CELL / 2, "nothing", style="italic")
            for number, (line, column, value) in enumerate(_places(lines)):
                is_wrong = (line, column, value) not in good
                has_wrong |= is_wrong
                ground = tint(WRONG) if is_wrong else LIGHT
                look = _WRONG if is_wrong else {"edgecolor": GREY}
                box = x + width * column, y + _CELL * line, width, _CELL
                gid, text = f"{name}/r{rank}/e{number}", Element(value).text
                canvas.cell(box, text, ground, gid, bold=True, size=VALUE, **look)
        y += _CELL * max(len(got), len(expected)) + _BELOW
    if has_wrong:  # else nothing was got
        canvas.write(MARGIN, y + LINE / 2, "Red: not what it should be.")
    label = f"{title or 'What was damaged'}: what was damaged. {words}"
    return canvas.end(y + LINE + MARGIN / 2, label)


def _values(text: str) -> list:
    """What a rank got and what it should have got. ValueError, SyntaxError: these are no values."""
    got, _, expected = text.removeprefix("got ").partition(", should be ")
    return [ast.literal_eval(part) for part in (got, expected)]


def _lines(value) -> list[list]:
    """The innermost lists."""
    if isinstance(value, list) and any(isinstance(part, list) for part in value):
        return [line for part in value for line in _lines(part)]
    return [value if isinstance(value, list) else [value]]


def _places(lines: list[list]) -> list[tuple[int, int, object]]:
    return [
        (at, column, value) for at, line in enumerate(lines) for column, value in enumerate(line)
    ]
