"""Which version of the weights is where: a row of cells for each answer or engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collectives.pictures.colours import GREY, LIGHT, PALETTE
from collectives.pictures.page import LINE, MARGIN, TOP, Canvas, breadth, default_style

_CELL, _ROW = 0.45, 0.36
_COLOURS = {1: LIGHT, 2: PALETTE[1]}


@dataclass(frozen=True)
class WeightsInUse:
    """What a step in a lab returns: a table, and for each row of the picture a version, 1 or 2, for
    each of its parts. `end` has the words behind a row.
    """

    rows: list[dict]
    parts: Mapping[str, Sequence[int]]
    end: Mapping[str, str]
    legend: str

    shows = "Which version of the weights is in use"

    @default_style
    def draw(self, title: str, ranks: Sequence["WeightsInUse"]) -> Canvas:
        """A cell has the gid row<number>/<part>."""
        left = MARGIN + max(breadth(name, 9) for name in self.parts) + 0.2
        count = max(map(len, self.parts.values()))
        right = left + _CELL * count + 0.15
        canvas = Canvas(title, right + max(breadth(one, 9) for one in self.end.values()) + MARGIN)
        canvas.key({"version 1": LIGHT, "version 2": _COLOURS[2]})
        top = TOP + 2 * LINE
        for row, (name, versions) in enumerate(self.parts.items()):
            y = top + _ROW * 1.25 * row
            canvas.write(MARGIN, y + _ROW / 2, name)
            canvas.write(right, y + _ROW / 2, self.end[name])
            for part, version in enumerate(versions):
                box = left + _CELL * part, y, _CELL, _ROW
                canvas.cell(
                    box, str(version), _COLOURS[version], f"row{row}/{part}", edgecolor=GREY
                )
        told = "; ".join(
            f"{name}: versions {', '.join(map(str, versions))}, {self.end[name]}"
            for name, versions in self.parts.items()
        )
        bottom = top + _ROW * 1.25 * len(self.parts)
        return canvas.end_with(self.legend, bottom, f"{title}. {self.legend} {told}.")
