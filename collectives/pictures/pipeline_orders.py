"""Several orders of the passes of a pipeline below each other, on one scale of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectives.pictures.page import LINE, MARGIN, WIDEST, Canvas, default_style, wrapped
from collectives.pictures.pipeline_slots import (
    COLOURS,
    LEFT,
    PITCH,
    PipelineSlots,
    draw_kinds,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEGEND = (
    "The number is that of the micro-batch. Input and weights are the two gradients of a backward "
    "pass. A pale box belongs to the second part of a rank. In white slots a rank waits. The "
    "passes stand in the order in which the ranks made them, each after those that it needs: these "
    "are no seconds."
)


@dataclass(frozen=True)
class PipelineOrders:
    """Each order in slots of the same length."""

    orders: Sequence[PipelineSlots]

    def __str__(self) -> str:
        return ", ".join(f"{one.name}: {one.length}" for one in self.orders)

    @default_style
    def draw(self, title: str, ranks: Sequence[PipelineOrders]) -> Figure:
        """A panel for each order. A pass has the gid that `PipelineSlots` gives it."""
        panel = PITCH * self.orders[0].count + 0.45
        top = MARGIN + 0.35 + 1.6 * LINE
        bottom = top + panel * len(self.orders)
        step = (WIDEST - LEFT - MARGIN) / max(one.length for one in self.orders)
        legend = wrapped(_LEGEND, WIDEST - 2 * MARGIN)
        canvas = Canvas(WIDEST, bottom + LINE * len(legend) + MARGIN)
        canvas.title(title)
        draw_kinds(canvas, tuple(COLOURS), MARGIN + 0.38)
        for number, one in enumerate(self.orders):
            y = top + panel * number
            canvas.write(MARGIN, y + 0.1, _heading(one), 9.5, weight="bold")
            one.draw_lanes(canvas, y + 0.27, step)
        canvas.lines(MARGIN, bottom + 0.3 * LINE, legend)
        said = " ".join(f"{_heading(one)}. {one.describe()}" for one in self.orders)
        canvas.figure.set_label(f"{title}. {said}")
        return canvas.figure


def _heading(one: PipelineSlots) -> str:
    waits = {one.waiting(rank) for rank in range(one.count)}
    return (
        f"{one.name}: {one.length} slots, each rank waits in {' or '.join(map(str, sorted(waits)))}"
    )
