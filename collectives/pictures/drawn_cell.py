"""How one cell looks: its value, on the colour of the rank that the value came from.

A value from another rank has a thick edge. A value of several ranks has a stripe for each of them.
"""

from collectives.pictures.colours import DARK, LIGHT, WRONG, colour_of, ink, tint
from collectives.pictures.origin import PictureCell
from collectives.pictures.page import VALUE, Box, Canvas

_NO_RANK, _EDGE = "#dcdcdc", "#555555"
_PLAIN = {"edgecolor": _EDGE, "linewidth": 0.8}

# Edges and patterns by state; all other states look plain.
_LOOKS = {
    "received": {"edgecolor": DARK, "linewidth": 2.2},
    "padding": {"edgecolor": "#777777", "linewidth": 0.8, "hatch": "////"},
    "undefined": {"edgecolor": WRONG, "linewidth": 1.6, "hatch": "////"},
    "unknown": {"edgecolor": "#777777", "linewidth": 0.8, "hatch": "|||"},
}


def cell_width(text: str, spare: float = 0.17, size: float = VALUE) -> float:
    """The width of a cell in which this value has room, and some to spare."""
    return 0.125 * size / VALUE * len(text) + spare


def draw_cell(canvas: Canvas, box: Box, cell: PictureCell, gid: str, size: float = VALUE) -> None:
    """A cell with its value, in letters of this size."""
    ground = fill(canvas, box, cell, gid)
    x, y, width, height = box
    # Text cannot be read on a pattern.
    if len(cell.ranks) > 1 or _look(cell) in ("padding", "undefined", "unknown"):
        canvas.box((x + 0.05 * width, y + 0.17 * height, 0.9 * width, 0.66 * height), ground)
    style = {"colour": ink(ground), "ha": "center"}
    canvas.write(x + width / 2, y + height / 2, cell.text, size, weight="bold", **style)


def fill(canvas: Canvas, box: Box, cell: PictureCell, gid: str | None = None) -> str:
    """The background of a cell, with a stripe for each rank that a value of several is made from.

    Returns the colour behind its text.
    """
    if len(cell.ranks) > 1 or cell.state == "undefined":
        ground = LIGHT
    else:
        ground = colour_of(cell.ranks[0]) if cell.ranks else _NO_RANK
    if cell.state == "padding":
        ground = tint(ground)
    canvas.box(box, ground, gid, **_LOOKS.get(_look(cell), _PLAIN))
    if len(cell.ranks) > 1:
        x, y, width, height = box
        step = width / len(cell.ranks)
        for number, rank in enumerate(cell.ranks):
            stripe = x + number * step, y, step, height
            canvas.box(stripe, colour_of(rank), gid and f"{gid}/r{rank}")
    return ground


def _look(cell: PictureCell) -> str:
    """A value that stayed may still be that of several ranks."""
    return "unknown" if cell.state == "untouched" and not cell.ranks else cell.state
