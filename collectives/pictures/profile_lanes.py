"""A step of training by the clock: what each rank computes, and which calls are under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectives.pictures.colours import DARK, LIGHT, PALETTE, edge, ink
from collectives.pictures.page import LINE, MARGIN, SMALL, WIDEST, Canvas, default_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {
    "forward": PALETTE[6],
    "backward": PALETTE[7],
    "optimizer": PALETTE[4],
    "all_reduce": PALETTE[1],
}
_CALLS = ("all_reduce",)
_BAR, _APART, _RANK = 0.24, 0.05, 0.3

Span = tuple[str, float, float]  # what, from and to in milliseconds


@dataclass(frozen=True)
class ProfileLanes:
    """`steps`: by name, for each rank its spans. Their times begin with the step."""

    steps: dict[str, list[list[Span]]]

    def __str__(self) -> str:
        return ", ".join(self.steps)

    @default_style
    def draw(self, title: str, ranks: Sequence[ProfileLanes]) -> Figure:
        """A span has the gid <step>/r<rank>/<what>/<number>."""
        left, top = MARGIN + 0.8, MARGIN + 0.75
        lanes = {name: [_rows(spans) for spans in one] for name, one in self.steps.items()}
        heights = [
            2 * LINE + sum(_height(rows) for rows in one) + 1.6 * LINE for one in lanes.values()
        ]
        canvas = Canvas(WIDEST, top + sum(heights) + MARGIN)
        canvas.title(title)
        for number, (what, colour) in enumerate(_COLOURS.items()):
            x, y = MARGIN + 1.2 * number, MARGIN + 0.38
            canvas.box(x, y, 0.16, 0.16, colour)
            canvas.write(x + 0.22, y + 0.08, what)
        for (name, drawn), height in zip(lanes.items(), heights, strict=True):
            end = max(span[2] for rows in drawn for row in rows for span in row)
            scale = (WIDEST - left - MARGIN - 0.1) / end
            canvas.write(MARGIN, top + LINE / 2, name, weight="bold")
            y = top + 2 * LINE
            for rank, rows in enumerate(drawn):
                canvas.chip(MARGIN, y + _BAR / 2, rank)
                canvas.box(left, y, scale * end, _height(rows) - _RANK + _APART, LIGHT)
                for place, row in enumerate(rows):
                    for number, (what, begin, stop) in enumerate(row):
                        box = left + scale * begin, y + place * (_BAR + _APART)
                        gid = f"{name}/r{rank}/{what}/{place}.{number}"
                        _bar(canvas, *box, scale * (stop - begin), what, gid)
                y += _height(rows)
            axis = y - _RANK + 2 * _APART
            for at in (0, end / 2, end):
                x = left + scale * at
                canvas.axes.plot([x, x], [axis, axis + 0.06], color=DARK, linewidth=0.8)
                canvas.write(x, axis + 0.16, f"{at:.0f} ms", ha="right" if at == end else "center")
            top += height
        canvas.figure.set_label(f"{title}. {self._described()}")
        return canvas.figure

    def _described(self) -> str:
        says = []
        for name, one in self.steps.items():
            for rank, spans in enumerate(one):
                end = max(stop for _, _, stop in spans)
                busy = sum(stop - begin for what, begin, stop in spans if what not in _CALLS)
                says.append(f"{name}, rank {rank}: computes {busy:.0f} of {end:.0f} ms")
        return "; ".join(says)


def _rows(spans: Sequence[Span]) -> list[list[Span]]:
    """What it computes, and below it the calls, in as many rows as are under way at a time."""
    rows: list[list[Span]] = [[tuple(span) for span in spans if span[0] not in _CALLS]]  # type: ignore[misc]
    calls: list[list[Span]] = []
    for what, begin, stop in sorted(spans, key=lambda span: span[1]):
        if what in _CALLS:
            free = next((row for row in calls if row[-1][2] <= begin), None)
            if free is None:
                calls.append(free := [])
            free.append((what, begin, stop))
    return rows + calls


def _height(rows: list[list[Span]]) -> float:
    return len(rows) * (_BAR + _APART) + _RANK


def _bar(canvas: Canvas, x: float, y: float, width: float, what: str, gid: str) -> None:
    colour = _COLOURS[what]
    canvas.box(x, y, max(width, 0.01), _BAR, colour, gid, linewidth=0.6, edgecolor=edge(colour))
    if width > 0.075 * len(what):
        canvas.write(x + width / 2, y + _BAR / 2, what, SMALL, ink(colour), ha="center")
