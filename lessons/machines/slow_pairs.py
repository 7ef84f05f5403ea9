"""What is slower than before: the all_reduce that each rank measures, and each pair of ranks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from collectives.pictures.colours import GREY, LIGHT, PALETTE
from collectives.pictures.page import CHIP, LINE, MARGIN, TOP, Canvas, default_style

_CELL, _ROW, _BETWEEN = 0.8, 0.36, 0.7
_SLOW = PALETTE[5]


@dataclass(frozen=True)
class SlowPairs:
    """What a step in a lab returns: a table, and the slower ones of all pairs (lower rank first).

    `ranks` has for each rank whether its all_reduce is slower.
    """

    rows: list[dict[str, str]]
    ranks: Sequence[bool]
    pairs: Collection[tuple[int, int]]

    shows = "Which rank and which pair of ranks is slower than before"

    @default_style
    def draw(self, title: str, ranks: Sequence["SlowPairs"]) -> Canvas:
        """A cell has the gid all/r<rank> or pair/r<rank>/r<rank>."""
        n = len(self.ranks)
        left, right = MARGIN + CHIP + 0.1, MARGIN + 2 * CHIP + 0.2 + _CELL + _BETWEEN
        canvas = Canvas(title, max(right + _CELL * n + MARGIN, 6.0))
        canvas.key({"slower": _SLOW, "as fast as before": LIGHT})
        top = TOP + 3.5 * LINE
        canvas.write(MARGIN, top - 1.5 * LINE, "all_reduce", weight="bold")
        canvas.write(right - CHIP - 0.1, top - 1.5 * LINE, "pairs", weight="bold")
        for rank, slow in enumerate(self.ranks):
            y = top + _ROW * (rank + 1)
            canvas.chip(MARGIN, y + _ROW / 2, rank)
            canvas.chip(right - CHIP - 0.1, y + _ROW / 2, rank)
            canvas.chip(right + _CELL * rank + (_CELL - CHIP) / 2, top + _ROW / 2, rank)
            _cell(canvas, (left, y, _CELL, _ROW), slow, f"all/r{rank}")
            for other in {*range(n)} - {rank}:
                slow = tuple(sorted((rank, other))) in self.pairs
                box = right + _CELL * other, y, _CELL, _ROW
                _cell(canvas, box, slow, f"pair/r{rank}/r{other}")
        told = ", ".join(f"{a} and {b}" for a, b in sorted(self.pairs))
        legend = "The pairs of one rank are a row and a column."
        bottom = top + _ROW * (n + 1) + 0.1
        return canvas.end_with(legend, bottom, f"{title}. {legend} Slower pairs: {told}.")


def _cell(canvas: Canvas, box, slow: bool, gid: str) -> None:
    canvas.cell(box, "slower" if slow else "", _SLOW if slow else LIGHT, gid, edgecolor=GREY)
