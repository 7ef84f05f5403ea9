"""A pipeline in slots of equal length: a lane for each rank, a box for each pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collectives.pictures.colours import LIGHT, PALETTE, edge, tint
from collectives.pictures.page import LINE, MARGIN, TOP, WIDEST, Canvas, Look, default_style

_HEIGHT, _PITCH, _LEFT = 0.3, 0.4, MARGIN + 0.8
_LEAST = 5.2  # a page has room for the line above an order
_COLOURS = {
    "forward": PALETTE[6],
    "backward": PALETTE[7],
    "input": PALETTE[4],
    "weights": PALETTE[5],
}
_LEGEND = (
    "The number is that of the micro-batch. The passes stand in the order in which the ranks made "
    "them. Each is drawn one slot wide, after the passes that it needs: these are no seconds."
)
_LEGEND_OF_ORDERS = (
    "The number is that of the micro-batch. Input and weights are the two gradients of a backward "
    "pass. A pale box belongs to the second part of a rank. In white slots a rank waits. The "
    "passes stand in the order in which the ranks made them, each after those that it needs: these "
    "are no seconds."
)


@dataclass(frozen=True)
class PipelineSlots:
    """When each pass begins: (rank, kind, micro-batch, part of the rank) to a slot.

    The kinds are "forward" and "backward", or "input" and "weights" for the two halves of a
    backward pass. `lengths` has the slots of a pass of each kind that takes more than one.
    """

    name: str
    begins: dict[tuple[int, str, int, int], int]
    lengths: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, orders: Sequence[Sequence[tuple]], lengths: Mapping[str, int] | None = None
    ) -> "PipelineSlots":
        """From the passes of each rank in order. Each waits for that of the neighbour before it.

        A pass is (kind, micro-batch) or (kind, micro-batch, part). The parts of all ranks follow
        each other: the first of each rank, then the second of each.
        """
        lengths = lengths or {}
        todo = [[(*one, 0)[:3] for one in order] for order in orders]
        last = len(todo) * (1 + max(part for order in todo for _, _, part in order)) - 1
        begins: dict[tuple[int, str, int, int], int] = {}
        ends: dict[tuple[str, int, int] | None, int] = {None: 0}
        free = [0] * len(todo)  # the first slot in which the rank has nothing to do
        while any(todo):
            waits = True
            for rank, order in enumerate(todo):
                if not order:
                    continue
                kind, number, part = order[0]
                stage = part * len(todo) + rank
                needed = _needed(kind, number, stage, last)
                if needed in ends:
                    begins[rank, kind, number, part] = max(free[rank], ends[needed])
                    free[rank] = begins[rank, kind, number, part] + lengths.get(kind, 1)
                    ends[kind, number, stage] = free[rank]
                    order.pop(0)
                    waits = False
            if waits:
                raise ValueError(f"{name}: ranks wait for each other in slot {max(free)}")
        return cls(name, begins, lengths)

    @property
    def length(self) -> int:
        return max(slot + self.lengths.get(one[1], 1) for one, slot in self.begins.items())

    def waiting(self) -> list[int]:
        """By rank, the slots in which it has nothing to do."""
        found = [self.length] * (1 + max(rank for rank, *_ in self.begins))
        for rank, kind, *_ in self.begins:
            found[rank] -= self.lengths.get(kind, 1)
        return found

    def __str__(self) -> str:
        return f"{self.length} slots"

    shows = "What each rank of the pipeline does in each slot"

    @default_style
    def draw(self, title: str, ranks: Sequence["PipelineSlots"]) -> Canvas:
        """A pass has the gid <schedule>/r<rank>/<kind>/<micro-batch>, and /1 if it is of part 1."""
        return _draw_orders([self], title, _LEGEND)


@dataclass(frozen=True)
class PipelineOrders:
    """Each order in slots of the same length."""

    orders: Sequence[PipelineSlots]

    def __str__(self) -> str:
        return ", ".join(f"{one.name}: {one.length}" for one in self.orders)

    shows = PipelineSlots.shows

    @default_style
    def draw(self, title: str, ranks: Sequence["PipelineOrders"]) -> Canvas:
        """A panel for each order. A pass has the gid that `PipelineSlots` gives it."""
        return _draw_orders(self.orders, title, _LEGEND_OF_ORDERS)


def _draw_orders(orders: Sequence[PipelineSlots], title: str, legend: str) -> Canvas:
    """A panel for each order, with a lane for each rank. Later parts of a rank are pale."""
    longest = max(one.length for one in orders)
    step = min(0.32, (WIDEST - _LEFT - MARGIN) / longest)
    canvas, told = Canvas(title, min(max(_LEFT + step * longest + MARGIN, _LEAST), WIDEST)), []
    kinds = {kind for one in orders for _, kind, *_ in one.begins}
    canvas.key({kind: colour for kind, colour in _COLOURS.items() if kind in kinds})
    y = TOP + 1.6 * LINE
    for one in orders:
        waits = " or ".join(map(str, sorted({*one.waiting()})))
        heading = f"{one.name}: {one.length} slots, each rank waits in {waits}"
        canvas.write(MARGIN, y + 0.1, heading, 9.5, weight="bold")
        told.append(f"{heading}.")
        y += 0.27
        for rank in range(len(one.waiting())):
            canvas.chip(MARGIN, y + _PITCH * rank + _HEIGHT / 2, rank)
            canvas.box((_LEFT, y + _PITCH * rank, step * one.length, _HEIGHT), LIGHT)
        for (rank, kind, number, part), slot in sorted(one.begins.items()):
            colour = tint(_COLOURS[kind]) if part else _COLOURS[kind]
            gid = f"{one.name}/r{rank}/{kind}/{number}" + f"/{part}" * (part > 0)
            is_dark = edge(colour) == colour  # a dark box has no line that is darker
            look: Look = {"edgecolor": LIGHT} if is_dark else {}
            box = _LEFT + step * slot, y + _PITCH * rank, step * one.lengths.get(kind, 1), _HEIGHT
            canvas.cell(box, str(number), colour, gid, **look)
            of_part = f" of part {part}" * (part > 0)
            told.append(f"Rank {rank}: {kind} {number}{of_part} in slot {slot}.")
        y += _PITCH * len(one.waiting()) + 0.18
    return canvas.end_with(legend, y - 0.2, f"{title}. {' '.join(told)}")


def _needed(kind: str, number: int, stage: int, last: int) -> tuple[str, int, int] | None:
    """The pass (kind, micro-batch, stage) of which this one needs the result."""
    if kind == "forward":
        return (kind, number, stage - 1) if stage else None
    if kind == "weights":
        return "input", number, stage
    return (kind, number, stage + 1) if stage < last else ("forward", number, stage)
