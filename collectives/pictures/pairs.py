"""Machines that are slow together, and with whom each of them is slow alone: a grid of pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.pictures.colours import GREY, PALETTE, WRONG, tint
from collectives.pictures.page import LINE, MARGIN, TOP, VALUE, Canvas, default_style

_LEFT, _TOP, _CELL, _ROW = MARGIN + 0.75, TOP + 2.4 * LINE, 0.9, 0.5
_RIGHT = _LEFT + _CELL + 0.6
_LEGEND = "Everybody is slow together. The machine whose row and column are slow is the cause."
_WORDS = {True: "slow", False: "fast"}


@dataclass(frozen=True)
class Pairs:
    """What a step in a lab returns: the rows of its table, and which machines are slow.

    `together`: for each machine, whether it is slow when all take part. `pairs`: whether two are
    slow by themselves; it has a key for each two machines, (0, 2).
    """

    rows: list[dict]
    together: Sequence[bool]
    pairs: dict[tuple[int, int], bool]

    @default_style
    def draw(self, title: str, ranks: Sequence["Pairs"]) -> Canvas:
        """A cell has the gid all/<machine> or pair/<machine>-<machine>."""
        count = len(self.together)
        canvas = Canvas(title, _RIGHT + _CELL * count + MARGIN)
        heading = _TOP - 1.6 * LINE
        canvas.write(_LEFT + _CELL / 2, heading, "all together", ha="center")
        canvas.write(_RIGHT + _CELL * count / 2, heading, "two of them alone: with", ha="center")
        for machine, is_slow in enumerate(self.together):
            name, y = f"node{machine}", _TOP + _ROW * machine
            canvas.write(MARGIN, y + _ROW / 2, name, 10, weight="bold")
            canvas.write(_RIGHT + _CELL * (machine + 0.5), _TOP - 0.6 * LINE, name, ha="center")
            _draw_cell(canvas, _LEFT, machine, is_slow, f"all/{machine}")
        for (a, b), is_slow in self.pairs.items():
            for row, column in ((a, b), (b, a)):
                x, gid = _RIGHT + _CELL * column, f"pair/{row}-{column}"
                _draw_cell(canvas, x, row, is_slow, gid)
        told = [f"All together, node{at} is {_WORDS[one]}." for at, one in enumerate(self.together)]
        told += [
            f"node{a} and node{b} alone are {_WORDS[one]}." for (a, b), one in self.pairs.items()
        ]
        return canvas.end_with(_LEGEND, _TOP + _ROW * count, f"{title}. {' '.join(told)}")


def _draw_cell(canvas: Canvas, x: float, row: int, is_slow: bool, gid: str) -> None:
    colour = tint(WRONG if is_slow else PALETTE[2])
    look = {"edgecolor": WRONG, "linewidth": 1.8, "zorder": 1.5} if is_slow else {"edgecolor": GREY}
    box = x, _TOP + _ROW * row, _CELL, _ROW
    canvas.cell(box, _WORDS[is_slow], colour, gid, bold=True, size=VALUE, **look)
