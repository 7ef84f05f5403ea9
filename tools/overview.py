"""Many calls side by side, each in a small panel: what the ranks have before it and after it."""

from collections.abc import Sequence
from itertools import groupby

from collectives.pictures.colours import DARK, colour_of
from collectives.pictures.data_panels import CallPanel
from collectives.pictures.origin import Row
from collectives.pictures.page import MARGIN, SMALL, WIDEST, Canvas, default_style, wrapped
from collectives.pictures.picture import draw_cell, in_words, legend

_COLUMNS, _CELL, _ROW, _PIECE = 3, 0.24, 0.27, 0.05
_CHIP, _BEFORE, _ARROW = 0.2, 0.3, 0.5  # widths: of the rank's chip, with its gap, of the arrow
_LEGEND = 2.8
_BEYOND = 0.42  # from one panel of a column to the next, beside its rows


@default_style
def draw(calls: Sequence[CallPanel]) -> Canvas:
    """A cell has the gid call<n>/before/r<rank>/e<index>, or .../after/..."""
    height = _ROW * len(calls[0].origins.before) + _BEYOND
    # The last panel, or an empty place beside it, is the legend.
    rows = len(calls) // _COLUMNS + 1
    canvas = Canvas()
    lefts = _lefts(calls)
    for number, call in enumerate(calls):
        row, column = divmod(number, _COLUMNS)
        _panel(canvas, lefts[column], MARGIN + height * row, call, f"call{number + 1}")
    left = min(lefts[len(calls) % _COLUMNS], WIDEST - MARGIN - _LEGEND)
    top = MARGIN + height * (rows - 1) + 0.25
    ranks = f"0 to {len(calls[0].origins.before) - 1}: the ranks"
    text = " ".join([f"{ranks}. Left: before the call. Right: after it.", *legend(calls)])
    canvas.lines(left, top, wrapped(text, _LEGEND))
    return canvas.end(MARGIN + height * rows, " ".join(map(in_words, calls)))


def _lefts(calls: Sequence[CallPanel]) -> list[float]:
    """Where the columns begin. Each is as wide as its widest panel."""
    widths = [_BEFORE + _ARROW + sum(_measured(call)[1:]) for call in calls]
    columns = [max(widths[column::_COLUMNS]) for column in range(_COLUMNS)]
    between = (WIDEST - 2 * MARGIN - sum(columns)) / (_COLUMNS - 1)
    return [MARGIN + sum(columns[:column]) + between * column for column in range(_COLUMNS)]


def _measured(call: CallPanel) -> tuple[float, float, float]:
    """The widths of a cell, and of all that the ranks have before the call and after it."""
    sides = call.origins.before, call.origins.after
    letters = max(len(cell.text) for side in sides for row in side for cell in row or ())
    width = max(0.24, 0.095 * letters + 0.03)
    before, after = (max(_span(row, width) for row in side) for side in sides)
    return width, before, after


def _panel(canvas: Canvas, left: float, top: float, call: CallPanel, gid: str) -> None:
    canvas.write(left, top, call.caption, 10, weight="bold")
    width, before, _ = _measured(call)
    first, middle = left + _BEFORE, left + _BEFORE + before
    sides = {
        "before": (first, call.origins.before),
        "after": (middle + _ARROW, call.origins.after),
    }
    for rank in range(len(call.origins.before)):
        y = top + 0.13 + _ROW * rank
        canvas.cell((left, y, _CHIP, _CELL), str(rank), colour_of(rank), bold=True)
        for name, (x, rows) in sides.items():
            _row(canvas, x, y, width, rows[rank], f"{gid}/{name}/r{rank}")
    y = top + 0.13 + _ROW * len(call.origins.before) / 2
    ends = [(middle + 0.1, y), (middle + _ARROW - 0.1, y)]
    canvas.arrow(ends, f"{gid}/arrow", mutation_scale=11, linewidth=1.4, color=DARK)


def _row(canvas: Canvas, x: float, y: float, width: float, row: Row, gid: str) -> None:
    number = 0
    for _, piece in groupby(row or (), lambda cell: cell.piece):
        for cell in piece:
            draw_cell(canvas, (x, y, width, _CELL), cell, f"{gid}/e{number}", SMALL)
            x, number = x + width, number + 1
        x += _PIECE


def _span(row: Row, width: float) -> float:
    cells = row or ()
    return len(cells) * width + _PIECE * max((cell.piece for cell in cells), default=0)
