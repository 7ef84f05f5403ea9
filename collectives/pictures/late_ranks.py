"""Who waits for a rank that calls late: a grid with a row for each rank that is late once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collectives.pictures.colours import PALETTE, tint
from collectives.pictures.page import LINE, MARGIN, VALUE, Canvas, default_style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEFT, _TOP = MARGIN + 1.1, MARGIN + 0.35 + 2 * LINE
_CELL, _ROW = 0.9, 0.4
_LEGEND = (
    "In each row one rank is late. Before it calls, every other rank has returned, or waits. "
    "Colour: the rank that it waits for."
)


class ReturnedBefore(list[int]):
    """The ranks that had returned before this rank, which was late, made the same call."""

    @default_style
    def draw(self, title: str, ranks: Sequence[ReturnedBefore]) -> Figure:
        """A cell has the gid <late rank>-<rank>."""
        right, bottom = _LEFT + _CELL * len(ranks), _TOP + _ROW * len(ranks)
        width = max(right + MARGIN, 4.0)
        legend = wrapped(_LEGEND, width - 2 * MARGIN)
        canvas = Canvas(width, bottom + LINE * (len(legend) + 0.5) + MARGIN)
        canvas.title(title)
        for late, returned in enumerate(ranks):
            y = _TOP + _ROW * late
            canvas.chip(_LEFT + _CELL * late + (_CELL - 0.66) / 2, _TOP - 0.9 * LINE, late)
            canvas.write(MARGIN, y + _ROW / 2, f"rank {late} is late", weight="bold")
            for rank in range(len(ranks)):
                x, text = _LEFT + _CELL * rank, _word(late, rank, returned)
                colour = tint(PALETTE[late]) if text == "waits" else "white"
                look = {"edgecolor": "#555555", "linewidth": 0.8}
                canvas.box(x, y, _CELL, _ROW, colour, f"{late}-{rank}", **look)
                weight = "bold" if text == "waits" else "normal"
                style = {"ha": "center", "weight": weight}
                canvas.write(x + _CELL / 2, y + _ROW / 2, text, VALUE - 2, **style)
        canvas.lines(MARGIN, bottom + LINE, legend)
        canvas.figure.set_label(f"{title}. {_description(ranks)}")
        return canvas.figure


def _word(late: int, rank: int, returned: Sequence[int]) -> str:
    return "late" if rank == late else "returned" if rank in returned else "waits"


def _description(ranks: Sequence[Sequence[int]]) -> str:
    """The picture in sentences, for readers who cannot see it."""
    return " ".join(
        f"Rank {late} is late: "
        + ", ".join(
            f"rank {rank} {'has returned' if rank in returned else 'waits'}"
            for rank in range(len(ranks))
            if rank != late
        )
        + "."
        for late, returned in enumerate(ranks)
    )
