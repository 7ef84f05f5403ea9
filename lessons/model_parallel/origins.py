"""Which part of an engine's slices came from which trainer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from collectives.pictures.colours import GREY, LIGHT, colour_of
from collectives.pictures.page import LINE, MARGIN, TOP, WIDEST, Canvas, default_style

_LEGEND = (
    "Each rectangle is a whole weight, a row for each output. An engine holds what has a colour, "
    "and the colour is that of the trainer that sent it."
)
_HIGHEST, _BETWEEN = 1.9, 0.4


class Part(NamedTuple):
    """A part of a matrix, and the rank that sent it."""

    source: int
    rows: range
    columns: range


@dataclass(frozen=True)
class Origins:
    """By the name of a matrix, its shape, and the parts that this rank got. It prints the senders.

    >>> print(Origins({"up": (4, 2)}, {"up": [Part(0, range(2), range(2))]}))
    up from [0]
    """

    shapes: dict[str, tuple[int, int]]
    parts: dict[str, list[Part]]

    def __str__(self) -> str:
        told = [
            f"{name} from {[one.source for one in parts]}" for name, parts in self.parts.items()
        ]
        return ", ".join(told)

    shows = "Which trainer sent which part of an engine's weights"

    @default_style
    def draw(self, title: str, ranks: Sequence["Origins"]) -> Canvas:
        """The engines side by side. A part has the gid <name>/r<engine>/<trainer>."""
        engines = {rank: one.parts for rank, one in enumerate(ranks) if one.parts}
        widths = sum(width for _, width in self.shapes.values())
        boxes = len(engines) * len(self.shapes)
        room = WIDEST - 2 * MARGIN - _BETWEEN * (boxes - 1)
        highest = max(height for height, _ in self.shapes.values())
        scale = min(room / (len(engines) * widths), _HIGHEST / highest)
        canvas, x, y, told = Canvas(title), MARGIN, TOP + 3.6 * LINE, []
        for engine, parts in engines.items():
            canvas.chip(x, TOP + LINE, engine)
            for name, (height, width) in self.shapes.items():
                canvas.write(x, y - 0.7 * LINE, name)
                canvas.cell((x, y, scale * width, scale * height), "", LIGHT, edgecolor=GREY)
                for source, rows, columns in parts[name]:
                    corner = x + scale * columns.start, y + scale * rows.start
                    box = *corner, scale * len(columns), scale * len(rows)
                    gid = f"{name}/r{engine}/{source}"
                    canvas.cell(box, str(source), colour_of(source), gid)
                    told.append(
                        f"{name}: rank {engine} gets rows {rows.start} to {rows.stop} and columns "
                        f"{columns.start} to {columns.stop} from rank {source}."
                    )
                x += scale * width + _BETWEEN
        words = f"{title}. {' '.join(told)}"
        return canvas.end_with(_LEGEND, y + scale * highest, words)
