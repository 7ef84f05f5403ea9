"""What each rank has or does: a row for each rank, a column for each step, unit or part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectives.pictures.colours import LIGHT, PALETTE, ink
from collectives.pictures.page import LINE, MARGIN, SMALL, WIDEST, Canvas, default_style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEFT, _WIDEST_CELL, _ROW, _BETWEEN = 0.8, 0.6, 0.3, 0.4


@dataclass(frozen=True)
class RankGrid:
    """The rows of one rank, by name; each name is a panel, in which each rank has its row.

    A cell that is true is filled; a number is written into it. `columns` says what a column is, and
    `legend` what a filled cell is. The columns are numbered from `first` on.
    """

    rows: Mapping[str, Sequence[bool | int]]
    columns: str
    legend: str
    first: int = 1

    def __str__(self) -> str:
        return ", ".join(f"{name}: {_text(row)}" for name, row in self.rows.items())

    @default_style
    def draw(self, title: str, ranks: Sequence[RankGrid]) -> Figure:
        """Panels stand side by side if they fit. A cell has the gid <name>/r<rank>/<column>."""
        longest = max(map(len, self.rows.values()))
        cell = min(_WIDEST_CELL, (WIDEST - _LEFT - 2 * MARGIN) / longest)
        width = _LEFT + cell * longest + _BETWEEN
        across = min(len(self.rows), int((WIDEST - 2 * MARGIN + _BETWEEN) / width))
        height = 3.6 * LINE + _ROW * len(ranks)
        top = MARGIN + 0.35
        bottom = top + height * -(-len(self.rows) // across)
        page = max(2 * MARGIN + width * across - _BETWEEN, 6.5)
        legend = wrapped(self.legend, page - 2 * MARGIN)
        canvas = Canvas(page, bottom + LINE * len(legend) + MARGIN)
        canvas.title(title)
        for number, name in enumerate(self.rows):
            corner = MARGIN + width * (number % across), top + height * (number // across)
            self._draw_panel(canvas, corner, cell, name, [rank.rows[name] for rank in ranks])
        canvas.lines(MARGIN, bottom + LINE / 2, legend)
        canvas.figure.set_label(f"{title}. {self.legend} {self._described(ranks)}")
        return canvas.figure

    def _draw_panel(self, canvas, corner, cell, name, rows) -> None:
        x, y = corner
        first = x + _LEFT
        canvas.write(x, y + LINE / 2, name, 10, weight="bold")
        canvas.write(x, y + 1.8 * LINE, self.columns)
        for column in range(len(rows[0])):
            place = first + cell * (column + 0.5), y + 1.8 * LINE
            canvas.write(*place, str(column + self.first), SMALL, ha="center")
        for rank, row in enumerate(rows):
            above = y + 2.5 * LINE + _ROW * rank
            canvas.chip(x, above + _ROW / 2, rank)
            for column, value in enumerate(row):
                colour = PALETTE[rank] if value else LIGHT
                look = {"edgecolor": "#555555", "linewidth": 0.8}
                gid = f"{name}/r{rank}/{column}"
                box = first + cell * column, above + 0.03, cell, _ROW - 0.06
                canvas.box(*box, colour, gid, **look)
                if not isinstance(value, bool):
                    middle = first + cell * (column + 0.5), above + _ROW / 2
                    canvas.write(*middle, str(value), SMALL, ink(colour), ha="center")

    def _described(self, ranks: Sequence[RankGrid]) -> str:
        """The picture in sentences, for readers who cannot see it."""
        return " ".join(
            f"{name}, rank {rank}: {_text(one.rows[name])}."
            for name in self.rows
            for rank, one in enumerate(ranks)
        )


def _text(row: Sequence[bool | int]) -> str:
    """The numbers; of a row without them, how many cells are filled."""
    if all(isinstance(value, bool) for value in row):
        return f"{sum(row)} of {len(row)}"
    return ", ".join(map(str, row))
