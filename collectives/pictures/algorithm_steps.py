"""An algorithm step by step: who sends which piece to whom, and what every rank holds then.

A panel for each step has a row for each rank and a column for each piece. What arrives in the step
has a thick edge. Before the panel, a straight arrow for each message leads from row to row.
"""

from collections import defaultdict
from collections.abc import Sequence

from collectives.algorithms.lockstep import Message
from collectives.pictures.colours import DARK, LIGHT, WRONG, colour_of, ink
from collectives.pictures.elements import Element
from collectives.pictures.origin import MOST_ELEMENTS, MOST_RANKS, Origins, PictureCell, trace
from collectives.pictures.page import LINE, MARGIN, SMALL, WIDEST, Canvas, default_style

_SIZE, _CELL, _ROW = 10, 0.34, 0.42  # points of a value; the heights of a cell and of a row
_LABEL, _BETWEEN, _COLUMN = 0.82, 0.72, 0.05  # between two panels, where the arrows are; two cells
_IF_WRONG = " A red edge: no sum of the ranks' values gives this."
_NO_RANK = "#dcdcdc"
# The colour, the edge and its width.
_EMPTY, _PLAIN, _NEW = (("none", "#999999", 0.6), ("none", "#555555", 0.8), ("none", DARK, 2))
_RED = ("none", WRONG, 2)
_LEGEND = (
    "Colour: the ranks whose values are in it. A thick edge: it has arrived in this step. "
    "An arrow before a step leads from the sender of a message to its receiver."
)


@default_style
def draw(
    held: Sequence[Sequence[Sequence]],
    messages: Sequence[Sequence[Message]],
    title: str,
    op: str | None = None,
) -> Canvas:
    """The figure, for `picture.svg` and `picture.save`.

    `held[k][rank]` are the values of the pieces before step k, None for a piece that is not there;
    so `held` has one entry more than `messages`. Too many ranks or pieces are not drawn: the
    figure says so.
    """
    before = _traceable(held[0])
    traced = [trace(before, _traceable(now), op=op, in_place=True) for now in held]
    panels = [origins for origins in traced if origins]
    words = f"{title}. {describe(held, messages)}"
    if panels:
        return _drawn(held, messages, panels, title, words)
    canvas = Canvas(title, 6.4)
    limits = f"at most {MOST_RANKS} ranks and {MOST_ELEMENTS} pieces can be drawn"
    text = f"{len(before)} ranks, {len(before[0])} pieces: {limits}."
    canvas.write(MARGIN, MARGIN + 0.4, text)
    return canvas.end(1.0, words)


def describe(held: Sequence, messages: Sequence[Sequence[Message]]) -> str:
    """The same in sentences, for readers who cannot see it."""
    lines = [f"Before, {_all_held(held[0])}."]
    for number, (now, step) in enumerate(zip(held[1:], messages, strict=True), 1):
        who = ", ".join(
            f"rank {one.source} sends {_pieces(one.sent)} to rank {one.to}" for one in step
        )
        lines.append(f"Step {number}: {who or 'nobody sends'}. Then {_all_held(now)}.")
    return " ".join(lines)


def _pieces(numbers: Sequence[int]) -> str:
    return f"piece{'s' * (len(numbers) > 1)} {' and '.join(map(str, numbers))}"


def _all_held(rows: Sequence[Sequence]) -> str:
    return "; ".join(
        f"rank {rank} holds {' '.join(_text(value) or '-' for value in row)}"
        for rank, row in enumerate(rows)
    )


def _traceable(rows: Sequence[Sequence]) -> list[list]:
    return [["" if value is None else value for value in row] for row in rows]


def _text(value) -> str:
    return "" if value is None else Element(value).text


def _drawn(held, messages, panels: list[Origins], title: str, words: str) -> Canvas:
    ranks, columns = len(held[0]), len(held[0][0])
    letters = max(len(_text(value)) for now in held for row in now for value in row)
    cell = max(0.34, 0.105 * letters + 0.12)
    pitch = cell + _COLUMN
    width, height = columns * pitch, ranks * _ROW
    per_band = max(1, int((WIDEST - 2 * MARGIN - _LABEL) / (width + _BETWEEN)))
    bands = -(-len(held) // per_band)
    per_band = -(-len(held) // bands)  # bands of about the same length
    page = max(2 * MARGIN + _LABEL + per_band * (width + _BETWEEN), 4.6)
    is_wrong = any(
        element.state == "undefined"
        for panel in panels
        for row in panel.after
        for element in row or ()
    )
    top = MARGIN + 0.45
    below = round(72 * (top + bands * (height + 2 * LINE) + 0.05)) / 72
    # Points of whole numbers: see _Boxes._add.
    canvas = Canvas(title, round(72 * page) / 72)
    boxes = _Boxes(canvas)
    for number, panel in enumerate(panels):
        band, place = divmod(number, per_band)
        left = MARGIN + _LABEL + place * (width + _BETWEEN) + _BETWEEN * bool(band)
        y = top + band * (height + 2 * LINE) + LINE
        canvas.write(left, y - 0.7 * LINE, f"step {number}" if number else "before", SMALL)
        if not place:
            for rank in range(ranks):
                canvas.chip(MARGIN, y + rank * _ROW + _CELL / 2, rank)
        step = messages[number - 1] if number else []
        arrived = {(message.to, at) for message in step for at in message.received}
        _panel(boxes, (left, y), (cell, pitch), panel, held[number], arrived)
        for source, to in sorted({(message.source, message.to) for message in step}):
            ends = [(left - 0.62, source), (left - 0.1, to)]
            points = [(x, y + rank * _ROW + _CELL / 2) for x, rank in ends]
            canvas.arrow(points, f"step{number}/{source}-{to}", linewidth=1.2, mutation_scale=9)
    boxes.draw()
    return canvas.end_with(_LEGEND + _IF_WRONG * is_wrong, below - LINE / 2, words)


def _panel(boxes: "_Boxes", corner, sizes, panel: Origins, held, arrived) -> None:
    (left, top), (width, pitch) = corner, sizes
    for rank, row in enumerate(panel.after):
        for column, found in enumerate(row or ()):
            cell = None if held[rank][column] is None else found
            place = left + column * pitch, top + rank * _ROW
            boxes.cell(place, width, cell, is_new=(rank, column) in arrived)


class _Boxes:
    """All boxes of the cells. Those that look alike are one shape: a picture has hundreds."""

    def __init__(self, canvas: Canvas):
        self.canvas = canvas
        # Grounds, what is above them, and edges.
        self.layers: list[dict] = [defaultdict(list) for _ in range(3)]

    def cell(
        self, corner: tuple[float, float], width: float, cell: PictureCell | None, is_new: bool
    ):
        """A cell with its value, or the empty place of a piece that is not there."""
        if cell is None:
            self._add(2, _EMPTY, *corner, width, _CELL)
            return
        (x, y), ranks = corner, cell.ranks
        for number, rank in enumerate(ranks):
            stripe = width / len(ranks)
            self._add(0, colour_of(rank), x + number * stripe, y, stripe, _CELL)
        ground = colour_of(ranks[0]) if ranks else _NO_RANK
        if len(ranks) > 1:
            ground = LIGHT
            self._add(1, ground, x + 0.05 * width, y + 0.17 * _CELL, 0.9 * width, 0.66 * _CELL)
        elif not ranks:
            self._add(0, ground, x, y, width, _CELL)
        edge = _NEW if is_new else _PLAIN
        self._add(2, _RED if cell.state == "undefined" else edge, x, y, width, _CELL)
        style = {"colour": ink(ground), "ha": "center"}
        self.canvas.write(x + width / 2, y + _CELL / 2, cell.text, _SIZE, weight="bold", **style)

    def _add(self, layer: int, look, x: float, y: float, width: float, height: float) -> None:
        # Whole points have no decimals, which would be most of the file.
        left, right, top, bottom = (round(72 * at) / 72 for at in (x, x + width, y, y + height))
        corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
        self.layers[layer][look].append(corners)

    def draw(self) -> None:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        for layer in self.layers:
            for look, boxes in layer.items():
                colour, edge, line = look if isinstance(look, tuple) else (look, "none", 0)
                style = {"facecolor": colour, "edgecolor": edge, "linewidth": line}
                corners = [corner for box in boxes for corner in box]
                codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(boxes)
                self.canvas.axes.add_patch(PathPatch(Path(corners, codes), **style))
