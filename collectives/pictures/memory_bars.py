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
_MANY = 1e10  # bytes, from which on they are given in GB
_KINDS = (PALETTE[4], PALETTE[1], PALETTE[3], PALETTE[0], PALETTE[6])


@dataclass(frozen=True)
class MemoryBars:
    """The bytes of a rank: for each name of a bar, those of each kind. It prints the totals.

    A line stands at `limit`, the bytes that a rank has.
    """

    bars: dict[str, dict[str, int]]
    whose: str = "rank 0"
    limit: int = 0

    def __str__(self) -> str:
        totals = {name: sum(parts.values()) for name, parts in self.bars.items()}
        if self._most > _MANY:
            return ", ".join(f"{name}: {size / 1e9:,.0f} GB" for name, size in totals.items())
        return ", ".join(f"{name}: {size:,}" for name, size in totals.items())

    @property
    def _most(self) -> int:
        return max(self.limit, *(sum(parts.values()) for parts in self.bars.values()))

    @default_style
    def draw(self, title: str, ranks: Sequence[MemoryBars]) -> Figure:
        """The bars of rank 0, all on one scale. A part has the gid <bar>/<kind>."""
        kinds = list(dict.fromkeys(kind for parts in self.bars.values() for kind in parts))
        colours = dict(zip(kinds, _KINDS, strict=False))
        most = self._most
        unit, name_of_unit = (1e9, "GB") if most > _MANY else (1e3, "kB")
        left = MARGIN + max(breadth(name, 11) for name in self.bars) + 0.1
        room = WIDEST - left - MARGIN - breadth(f"10,000 {name_of_unit} in all") - 0.1
        limit = left + room * self.limit / most
        top = MARGIN + 0.35 + 1.6 * LINE
        bottom = top + _PITCH * len(self.bars)
        legend = wrapped(self._legend(unit, name_of_unit), WIDEST - 2 * MARGIN)
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
                width, colour = room * size / most, colours[kind]
                text = f"{size / unit:,.0f} {name_of_unit}"
                look = {"edgecolor": edge(colour), "linewidth": 0.8}
                canvas.box(x, y, width, _BAR, colour, f"{name}/{kind}", **look)
                if breadth(text) + 0.1 < width:
                    canvas.write(x + width / 2, y + _BAR / 2, text, SMALL, ink(colour), ha="center")
                x += width
            total = f"{sum(parts.values()) / unit:,.0f} {name_of_unit} in all"
            if x < limit < x + 0.2 + breadth(total):  # behind the line
                x = limit
            canvas.write(x + 0.1, y + _BAR / 2, total)
        if self.limit:
            canvas.box(limit, top - 0.1, 0.02, bottom - top, "black", "limit")
        canvas.lines(MARGIN, bottom + 0.3 * LINE, legend)
        canvas.figure.set_label(f"{title}. {self._describe()}")
        return canvas.figure

    def _legend(self, unit: float, name_of_unit: str) -> str:
        text = f"The bytes that {self.whose} holds, all bars on one scale."
        if self.limit:
            text += f" The line stands at {self.limit / unit:,.0f} {name_of_unit}."
        return text

    def _describe(self) -> str:
        """The picture in sentences, for readers who cannot see it."""
        return " ".join(
            f"{name}: {', '.join(f'{kind} {size:,} bytes' for kind, size in parts.items())}."
            for name, parts in self.bars.items()
        )
