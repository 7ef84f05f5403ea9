"""Tokens on their way to experts and back, and those that found no room."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from collectives.pictures.colours import WRONG, colour_of, edge
from collectives.pictures.page import CHIP, LINE, MARGIN, TOP, WIDEST, Canvas, default_style

_EXPERT = (0.86, 0.28)
_TOKEN = 0.45  # points of a line
_LEGEND = (
    "A line is the tokens of one rank that go to one expert, and on the right its answers. It has "
    "the colour of that rank, and is as wide as there are tokens. An expert has the colour of the "
    "rank that it lies on. Red: tokens for which their expert had no room."
)


@dataclass(frozen=True)
class TokenRoutes:
    """By expert, how many of a rank's tokens it took. The experts lie on the ranks in order.

    >>> print(TokenRoutes([3, 1], tokens=5))
    [3, 1]
    """

    taken: list[int]
    tokens: int

    @property
    def dropped(self) -> int:
        return self.tokens - sum(self.taken)

    def __str__(self) -> str:
        return str(self.taken)

    @default_style
    def draw(self, title: str, ranks: Sequence["TokenRoutes"]) -> Canvas:
        """A line has the gid r<rank>/<expert>, and /back on the way back."""
        n, experts = len(ranks), len(self.taken)
        canvas, told = Canvas(title), []
        top = TOP + 1.8 * LINE
        middle, right = (WIDEST - _EXPERT[0]) / 2, WIDEST - MARGIN - CHIP
        height = max(0.36 * experts, 0.62 * n)
        rows = [top + height * (rank + 0.5) / n for rank in range(n)]
        lines = [top + height * (expert + 0.5) / experts for expert in range(experts)]
        headings = {"tokens of": MARGIN, "experts": middle, "answers": right}
        for heading, x in headings.items():
            canvas.write(x, TOP + 0.6 * LINE, heading, 10, weight="bold")
        for rank, one in enumerate(ranks):
            look = {"color": edge(colour_of(rank)), "zorder": 0.5, "solid_capstyle": "butt"}
            starts = [0, *accumulate(one.taken)]
            for expert, count in enumerate(one.taken):
                # The lines of a rank leave it side by side.
                shift = _TOKEN / 72 * (starts[expert] + count / 2 - starts[-1] / 2)
                ys = [rows[rank] + shift, lines[expert]]
                look |= {"linewidth": _TOKEN * count}
                gid = f"r{rank}/{expert}"
                if count:
                    canvas.axes.plot([MARGIN + CHIP, middle], ys, gid=gid, **look)
                    ends = [middle + _EXPERT[0], right]
                    canvas.axes.plot(ends, ys[::-1], gid=f"{gid}/back", **look)
            canvas.chip(MARGIN, rows[rank], rank)
            canvas.chip(right, rows[rank], rank)
            canvas.write(MARGIN, rows[rank] + 0.25, f"{one.dropped} dropped", colour=WRONG)
            told.append(
                f"Of {one.tokens} tokens, rank {rank} sends {', '.join(map(str, one.taken))} to "
                f"the experts in order, and drops {one.dropped}."
            )
        for expert, y in enumerate(lines):
            owner = expert * n // experts
            box = middle, y - _EXPERT[1] / 2, *_EXPERT
            count = sum(one.taken[expert] for one in ranks)
            canvas.cell(box, f"{expert}: {count}", colour_of(owner), f"expert/{expert}")
        return canvas.end_with(_LEGEND, top + height, f"{title}. {' '.join(told)}")
