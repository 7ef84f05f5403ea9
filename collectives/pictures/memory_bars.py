"""What a rank holds in memory: a bar for each way to train, cut into parts of one kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectives.pictures.colours import PALETTE, edge, ink
from collectives.pictures.page import (
    LINE,
    MARGIN,
    SMALL,
    WIDEST,
    Canvas,
    breadth,
    default_style,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR, _PITCH = 0.36, 0.62
_KINDS = (PALETTE[4], PALETTE[1], PALETTE[3], PALETTE[0], PALETTE[6])
_LEGEND = "The bytes that rank 0 holds, all bars on one scale."


@dataclass(frozen=True)
class MemoryBars:
    """The bytes of a rank: for each name of a bar, those of each kind. It prints the totals."""

    bars: dict[str, dict[str, int]]

    def __str__(self) -> str:
        return ", ".join(f"{name}: {sum(parts.values()):,}" for name, parts in self.bars.items())

    @default_style
    def draw(self, title: str, ranks: Sequence[MemoryBars]) -> Figure:
        """The bars of rank 0, all on one scale. A part has the gid <bar>/<kind>."""
        kinds = list(dict.fromkeys(kind for parts in self.bars.values() for kind in parts))
        colours = dict(zip(kinds, _KINDS, strict=False))
        most = max(sum(parts.values()) for parts in self.bars.values())
        left = MARGIN + max(breadth(name, 11) for name in self.bars) + 0.1
        room = WIDEST - left - MARGIN - breadth("10,000 kB in all") - 0.1
        top = MARGIN + 0.35 + 1.6 * LINE
        bottom = top + _PITCH * len(self.bars)
        legend = wrapped(_LEGEND, WIDEST - 2 * MARGIN)
        canvas = Canvas(WIDEST, bottom + LINE * len(legend) + MARGIN)
        canvas.title(title)
        x = MARGIN
        for kind in kinds:
            canvas.box(x, top - 1.7 * LINE, 0.16, 0.16, colours[kind])
            canvas.write(x + 0.22, top - 1.7 * LINE + 0.08, kind)
            x += 0.42 + breadth(kind)
        for number, (name, parts) in enumerate(self.bars.items()):
            x, y = left, top + _PITCH * number
            canvas.write(MARGIN, y + _BAR / 2, name, 10, weight="bold")
            for kind, size in parts.items():
                width, colour, text = room * size / most, colours[kind], f"{size / 1000:,.0f} kB"
                look = {"edgecolor": edge(colour), "linewidth": 0.8}
                canvas.box(x, y, width, _BAR, colour, f"{name}/{kind}", **look)
                if breadth(text) + 0.1 < width:
                    canvas.write(x + width / 2, y + _BAR / 2, text, SMALL, ink(colour), ha="center")
                x += width
            canvas.write(x + 0.1, y + _BAR / 2, f"{sum(parts.values()) / 1000:,.0f} kB in all")
        canvas.lines(MARGIN, bottom + 0.3 * LINE, legend)
        canvas.figure.set_label(f"{title}. {self._describe()}")
        return canvas.figure

    def _describe(self) -> str:
        """The picture in sentences, for readers who cannot see it."""
        return " ".join(
            f"{name}: {', '.join(f'{kind} {size:,} bytes' for kind, size in parts.items())}."
            for name, parts in self.bars.items()
        )
