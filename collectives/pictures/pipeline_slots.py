"""A pipeline in slots of equal length: a lane for each rank, a box for each pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectives.pictures.colours import LIGHT, PALETTE, edge, ink
from collectives.pictures.page import LINE, MARGIN, SMALL, WIDEST, Canvas, default_style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT, _PITCH = 0.3, 0.4
_COLOURS = {"forward": PALETTE[6], "backward": PALETTE[7]}
_LEGEND = (
    "The number is that of the micro-batch. The passes stand in the order in which the ranks made "
    "them. Each is drawn one slot wide, after the passes that it needs: these are no seconds."
)


@dataclass(frozen=True)
class PipelineSlots:
    """When each pass begins: (rank, "forward" or "backward", micro-batch) to a slot."""

    name: str
    begins: dict[tuple[int, str, int], int]

    @classmethod
    def of(cls, name: str, orders: Sequence[Sequence[tuple[str, int]]]) -> PipelineSlots:
        """From the passes of each rank in order. Each waits for that of the neighbour before it."""
        begins: dict[tuple[int, str, int], int] = {}
        todo, slot = [list(order) for order in orders], 0
        while any(todo):
            ready = []
            for rank, order in enumerate(todo):
                kind, number = order[0] if order else ("forward", -1)
                before = rank - 1 if kind == "forward" else rank + 1
                if order and (before in (-1, len(todo)) or (before, kind, number) in begins):
                    ready.append((rank, kind, number))
            if not ready:
                raise ValueError(f"{name}: ranks wait for each other in slot {slot}")
            for one in ready:
                begins[one] = slot
                todo[one[0]].pop(0)
            slot += 1
        return cls(name, begins)

    @property
    def length(self) -> int:
        return 1 + max(self.begins.values())

    def __str__(self) -> str:
        return f"{self.length} slots"

    @default_style
    def draw(self, title: str, ranks: Sequence[PipelineSlots]) -> Figure:
        """A pass has the gid <schedule>/r<rank>/<kind>/<micro-batch>."""
        count = 1 + max(rank for rank, _, _ in self.begins)
        left, top = MARGIN + 0.8, MARGIN + 0.35 + 1.6 * LINE
        step = min(0.32, (WIDEST - left - MARGIN) / self.length)
        bottom = top + _PITCH * count
        legend = wrapped(_LEGEND, WIDEST - 2 * MARGIN)
        canvas = Canvas(WIDEST, bottom + LINE * (len(legend) + 0.6) + MARGIN)
        canvas.title(f"{title}: {self.name}, {self.length} slots")
        for number, (kind, colour) in enumerate(_COLOURS.items()):
            x, y = MARGIN + 1.2 * number, MARGIN + 0.38
            canvas.box(x, y, 0.16, 0.16, colour)
            canvas.write(x + 0.22, y + 0.08, kind)
        for rank in range(count):
            y = top + _PITCH * rank
            canvas.chip(MARGIN, y + _HEIGHT / 2, rank)
            canvas.box(left, y, step * self.length, _HEIGHT, LIGHT)
        for (rank, kind, number), slot in self.begins.items():
            x, y, colour = left + step * slot, top + _PITCH * rank, _COLOURS[kind]
            gid, look = f"{self.name}/r{rank}/{kind}/{number}", {"edgecolor": edge(colour)}
            canvas.box(x, y, step, _HEIGHT, colour, gid, linewidth=0.8, **look)
            middle = x + step / 2, y + _HEIGHT / 2
            canvas.write(*middle, str(number), SMALL, ink(colour), ha="center")
        canvas.lines(MARGIN, bottom + 0.6 * LINE, legend)
        canvas.figure.set_label(f"{title}: {self.name}. {self._describe(count)}")
        return canvas.figure

    def _describe(self, count: int) -> str:
        """The picture in sentences, for readers who cannot see it."""
        found = []
        for rank in range(count):
            passes = sorted((slot, *one[1:]) for one, slot in self.begins.items() if one[0] == rank)
            words = (f"{kind} {number} in slot {slot}" for slot, kind, number in passes)
            found.append(f"Rank {rank}: {', '.join(words)}.")
        return " ".join(found)
