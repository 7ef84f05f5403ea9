"""How many tokens of each rank each expert took, and how many found no room."""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.pictures.colours import PALETTE, WRONG, colour_of
from collectives.pictures.page import CHIP, LINE, MARGIN, TOP, WIDEST, Canvas, default_style

_ROW = 0.42
_LEGEND = (
    "A number is how many tokens of one rank one expert took: the darker, the more. As many "
    "answers come back to the rank. No room: tokens that their expert could not take."
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

    shows = "How many tokens of each rank go to each expert"

    @default_style
    def draw(self, title: str, ranks: Sequence["TokenRoutes"]) -> Canvas:
        """A row for each rank, a column for each expert. A cell has the gid r<rank>/<expert>."""
        n, experts = len(ranks), len(self.taken)
        canvas, told = Canvas(title), []
        left, top, width = MARGIN + CHIP + 0.5, TOP + 3.2 * LINE, (WIDEST - 2.7) / experts
        most = max(count for one in ranks for count in one.taken)
        canvas.write(left, TOP + 0.3 * LINE, "expert, on the rank of this colour", weight="bold")
        canvas.write(MARGIN, top - 0.9 * LINE, "tokens of", weight="bold")
        totals = [sum(one.taken[expert] for one in ranks) for expert in range(experts)]
        for expert, total in enumerate(totals):
            x, owner = left + width * expert, expert * n // experts
            box = x, top - 1.7 * LINE, width, 1.4 * LINE
            canvas.cell(box, str(expert), colour_of(owner), f"expert/{expert}", bold=True)
            canvas.write(x + width / 2, top + _ROW * n + 0.7 * LINE, f"{total}", ha="center")
        right = left + width * experts + 0.12
        canvas.write(right, top - 0.9 * LINE, "no room", weight="bold", colour=WRONG)
        canvas.write(MARGIN, top + _ROW * n + 0.7 * LINE, "of all ranks")
        for rank, one in enumerate(ranks):
            y = top + _ROW * rank
            canvas.chip(MARGIN, y + _ROW / 2, rank)
            for expert, count in enumerate(one.taken):
                box = left + width * expert, y, width, _ROW
                canvas.cell(box, str(count), _shade(count / max(1, most)), f"r{rank}/{expert}")
            canvas.write(right, y + _ROW / 2, f"{one.dropped}", colour=WRONG)
            told.append(
                f"Of {one.tokens} tokens, rank {rank} sends {', '.join(map(str, one.taken))} to "
                f"the experts in order, and drops {one.dropped}."
            )
        return canvas.end_with(_LEGEND, top + _ROW * n + LINE, f"{title}. {' '.join(told)}")


def _shade(share: float) -> str:
    """From white to the palette's blue."""
    blue = bytes.fromhex(PALETTE[4][1:])
    return "#" + "".join(f"{round(255 + share * (part - 255)):02x}" for part in blue)
