"""A pipeline in slots of equal length: a lane for each rank, a box for each pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collectives.pictures.colours import LIGHT, PALETTE, edge, ink, tint
from collectives.pictures.page import LINE, MARGIN, SMALL, WIDEST, Canvas, default_style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT, PITCH, LEFT = 0.3, 0.4, MARGIN + 0.8
COLOURS = {
    "forward": PALETTE[6],
    "backward": PALETTE[7],
    "input": PALETTE[4],
    "weights": PALETTE[5],
}
_LEGEND = (
    "The number is that of the micro-batch. The passes stand in the order in which the ranks made "
    "them. Each is drawn one slot wide, after the passes that it needs: these are no seconds."
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
    ) -> PipelineSlots:
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

    @property
    def count(self) -> int:
        """The number of ranks."""
        return 1 + max(rank for rank, *_ in self.begins)

    def waiting(self, rank: int) -> int:
        """The slots in which this rank has nothing to do."""
        kinds = (kind for one, kind, *_ in self.begins if one == rank)
        return self.length - sum(self.lengths.get(kind, 1) for kind in kinds)

    def __str__(self) -> str:
        return f"{self.length} slots"

    @default_style
    def draw(self, title: str, ranks: Sequence[PipelineSlots]) -> Figure:
        """A pass has the gid <schedule>/r<rank>/<kind>/<micro-batch>."""
        top = MARGIN + 0.35 + 1.6 * LINE
        bottom = top + PITCH * self.count
        legend = wrapped(_LEGEND, WIDEST - 2 * MARGIN)
        canvas = Canvas(WIDEST, bottom + LINE * (len(legend) + 0.6) + MARGIN)
        canvas.title(f"{title}: {self.name}, {self.length} slots")
        draw_kinds(canvas, ("forward", "backward"), MARGIN + 0.38)
        self.draw_lanes(canvas, top, min(0.32, (WIDEST - LEFT - MARGIN) / self.length))
        canvas.lines(MARGIN, bottom + 0.6 * LINE, legend)
        canvas.figure.set_label(f"{title}: {self.name}. {self.describe()}")
        return canvas.figure

    def draw_lanes(self, canvas: Canvas, top: float, step: float) -> None:
        """The lanes of all ranks, with slots of this width. Later parts of a rank are pale."""
        for rank in range(self.count):
            y = top + PITCH * rank
            canvas.chip(MARGIN, y + HEIGHT / 2, rank)
            canvas.box(LEFT, y, step * self.length, HEIGHT, LIGHT)
        for (rank, kind, number, part), slot in self.begins.items():
            x, y, width = LEFT + step * slot, top + PITCH * rank, step * self.lengths.get(kind, 1)
            colour = tint(COLOURS[kind]) if part else COLOURS[kind]
            gid = f"{self.name}/r{rank}/{kind}/{number}" + f"/{part}" * (part > 0)
            line = edge(colour)  # a dark box has no line that is darker
            look = {"edgecolor": LIGHT if line == colour else line, "linewidth": 0.8}
            canvas.box(x, y, width, HEIGHT, colour, gid, **look)
            canvas.write(
                x + width / 2, y + HEIGHT / 2, str(number), SMALL, ink(colour), ha="center"
            )

    def describe(self) -> str:
        """The picture in sentences, for readers who cannot see it."""
        found = []
        for rank in range(self.count):
            passes = sorted((slot, *one[1:]) for one, slot in self.begins.items() if one[0] == rank)
            words = (
                f"{kind} {number}{f' of part {part}' * (part > 0)} in slot {slot}"
                for slot, kind, number, part in passes
            )
            found.append(f"Rank {rank}: {', '.join(words)}.")
        return " ".join(found)


def draw_kinds(canvas: Canvas, kinds: Sequence[str], y: float) -> None:
    """What each colour means."""
    for number, kind in enumerate(kinds):
        x = MARGIN + 1.2 * number
        canvas.box(x, y, 0.16, 0.16, COLOURS[kind])
        canvas.write(x + 0.22, y + 0.08, kind)


def _needed(kind: str, number: int, stage: int, last: int) -> tuple[str, int, int] | None:
    """The pass (kind, micro-batch, stage) of which this one needs the result."""
    if kind == "forward":
        return (kind, number, stage - 1) if stage else None
    if kind == "weights":
        return "input", number, stage
    return (kind, number, stage + 1) if stage < last else ("forward", number, stage)
