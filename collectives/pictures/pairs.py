"""Machines that are slow together, and with whom each of them is slow alone: a grid of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectives.pictures.colours import PALETTE, WRONG, tint
from collectives.pictures.page import LINE, MARGIN, VALUE, Canvas, default_style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEFT, _TOP = MARGIN + 0.75, MARGIN + 0.35 + 2.4 * LINE
_CELL, _ROW, _BETWEEN = 0.9, 0.5, 0.6
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
    def draw(self, title: str, ranks: Sequence[Pairs]) -> Figure:
        """A cell has the gid all/<machine> or pair/<machine>-<machine>."""
        count = len(self.together)
        right, bottom = _LEFT + _CELL + _BETWEEN, _TOP + _ROW * count
        width = right + _CELL * count + MARGIN
        legend = wrapped(_LEGEND, width - 2 * MARGIN)
        canvas = Canvas(width, bottom + LINE * len(legend) + MARGIN)
        canvas.title(title)
        canvas.write(_LEFT + _CELL / 2, _TOP - 1.6 * LINE, "all together", ha="center")
        middle = right + _CELL * count / 2
        canvas.write(middle, _TOP - 1.6 * LINE, "two of them alone: with", ha="center")
        for machine, is_slow in enumerate(self.together):
            name, y = f"node{machine}", _TOP + _ROW * machine
            canvas.write(MARGIN, y + _ROW / 2, name, 10, weight="bold")
            x = right + _CELL * (machine + 0.5)
            canvas.write(x, _TOP - 0.6 * LINE, name, ha="center")
            _draw_cell(canvas, _LEFT, y, is_slow, f"all/{machine}")
        for (a, b), is_slow in self.pairs.items():
            for row, column in ((a, b), (b, a)):
                x, y = right + _CELL * column, _TOP + _ROW * row
                _draw_cell(canvas, x, y, is_slow, f"pair/{row}-{column}")
        canvas.lines(MARGIN, bottom + 0.8 * LINE, legend)
        canvas.figure.set_label(f"{title}. {self.describe()}")
        return canvas.figure

    def describe(self) -> str:
        """The picture in sentences, for readers who cannot see it."""
        together = (f"node{node} is {_WORDS[slow]}" for node, slow in enumerate(self.together))
        pairs = (
            f"node{a} and node{b} alone are {_WORDS[slow]}." for (a, b), slow in self.pairs.items()
        )
        return " ".join([f"All together: {', '.join(together)}.", *pairs])


def _draw_cell(canvas: Canvas, x: float, y: float, is_slow: bool, gid: str) -> None:
    look = {"edgecolor": "#555555", "linewidth": 0.8}
    if is_slow:
        look = {"edgecolor": WRONG, "linewidth": 1.8, "zorder": 1.5}
    canvas.box(x, y, _CELL, _ROW, tint(WRONG if is_slow else PALETTE[2]), gid, **look)
    text = _WORDS[is_slow]
    canvas.write(x + _CELL / 2, y + _ROW / 2, text, VALUE, ha="center", weight="bold")
