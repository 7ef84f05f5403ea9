"""Several orders of the passes of a pipeline below each other, on one scale of time."""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.pictures.page import Canvas, default_style
from collectives.pictures.pipeline_slots import COLOURS, PipelineSlots, draw_orders

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
    def draw(self, title: str, ranks: Sequence["PipelineOrders"]) -> Canvas:
        """A panel for each order. A pass has the gid that `PipelineSlots` gives it."""
        return draw_orders(self.orders, title, [*COLOURS], _LEGEND)
