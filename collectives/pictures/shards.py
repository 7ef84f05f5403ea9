"""Which rank takes which sample: a row of boxes for each batch, in the colours of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectives.pictures.colours import LIGHT, PALETTE, edge, ink
from collectives.pictures.page import LINE, MARGIN, SMALL, WIDEST, Canvas, default_style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT, _AT_AN_END = 0.36, 0.28, 11
_TAKEN = "A box is a sample, in the colour of the rank that takes it."
_TWICE = " A box below it: another rank takes the same sample."
_LEFT_OUT = " White: no rank takes it."


@dataclass(frozen=True)
class Shards:
    """For each name of a row: its samples in order, and those of them that this rank takes.

    It prints how many the rank takes.
    """

    rows: dict[str, tuple[Sequence[int], Sequence[int]]]

    def __str__(self) -> str:
        return ", ".join(f"{len(mine)} of {len(whole)}" for whole, mine in self.rows.values())

    @default_style
    def draw(self, title: str, ranks: Sequence[Shards]) -> Figure:
        """Of a long row its two ends. A box has the gid <row>/<place>/r<rank>."""
        takers = {name: _takers([one.rows[name] for one in ranks]) for name in self.rows}
        counts = [len(one) for row in takers.values() for one in row]
        heights = [
            1.2 * LINE + _HEIGHT * max(1, *(len(one) for one in row)) + LINE
            for row in takers.values()
        ]
        words = _TAKEN + _TWICE * (max(counts) > 1) + _LEFT_OUT * (min(counts) == 0)
        legend = wrapped(words, WIDEST - 2 * MARGIN)
        top = MARGIN + 0.35 + 2 * LINE
        bottom = top + sum(heights)
        canvas = Canvas(WIDEST, bottom + LINE * len(legend) + MARGIN)
        canvas.title(title)
        for rank in range(len(ranks)):
            canvas.chip(MARGIN + 0.8 * rank, MARGIN + 0.35 + 0.6 * LINE, rank)
        for (name, (whole, _)), height in zip(self.rows.items(), heights, strict=True):
            canvas.write(MARGIN, top + LINE / 2, name, weight="bold")
            _draw_row(canvas, name, whole, takers[name], top + 1.2 * LINE)
            top += height
        canvas.lines(MARGIN, bottom + 0.3 * LINE, legend)
        canvas.figure.set_label(f"{title}. {self._describe(takers)}")
        return canvas.figure

    def _describe(self, takers: dict[str, list[list[int]]]) -> str:
        """The picture in sentences, for readers who cannot see it."""
        found = []
        for name, row in takers.items():
            ends = [" and ".join(map(str, one)) or "none" for one in (*row[:6], *row[-1:])]
            twice, left_out = (
                sum(test(len(one)) for one in row) for test in ((1).__lt__, (0).__eq__)
            )
            found.append(
                f"{name}: {len(row)} samples, the first ones of ranks {', '.join(ends[:-1])}, the "
                f"last one of rank {ends[-1]}; {twice} of several ranks, {left_out} of none."
            )
        return " ".join(found)


def _takers(ranks: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[int]]:
    """For each sample of the row, the ranks that take it."""
    found: dict[int, list[int]] = {sample: [] for sample in ranks[0][0]}
    for rank, (_, mine) in enumerate(ranks):
        for sample in mine:
            found[sample].append(rank)
    return list(found.values())


def _draw_row(
    canvas: Canvas, name: str, whole: Sequence[int], takers: list[list[int]], y: float
) -> None:
    places = [*range(len(whole))]
    is_long = len(places) > 2 * _AT_AN_END + 1
    if is_long:
        canvas.write(MARGIN + _WIDTH * (_AT_AN_END + 0.5), y + _HEIGHT / 2, "...", ha="center")
        places = [*places[:_AT_AN_END], *places[-_AT_AN_END:]]
    for number, place in enumerate(places):
        x = MARGIN + _WIDTH * (number + (is_long and number >= _AT_AN_END))
        for level, rank in enumerate(takers[place] or [None]):
            colour = LIGHT if rank is None else PALETTE[rank]
            box, gid = (x, y + _HEIGHT * level), f"{name}/{place}/r{rank}"
            dark = edge(colour)
            canvas.box(*box, _WIDTH, _HEIGHT, colour, gid, edgecolor=dark, linewidth=0.8)
            middle = x + _WIDTH / 2, box[1] + _HEIGHT / 2
            canvas.write(*middle, str(whole[place]), SMALL, ink(colour), ha="center")
