"""Who holds which slice of a matrix: the matrix as a rectangle, in the colours of the ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from collectives.pictures.colours import GREY, LIGHT, colour_of
from collectives.pictures.page import (
    LINE,
    MARGIN,
    TOP,
    VALUE,
    WIDEST,
    Canvas,
    breadth,
    default_style,
)

if TYPE_CHECKING:
    from torch import Tensor

_COLOURS = "The colour is that of the rank that holds this part."
_EXCHANGED = (
    "Each rank sends a block to each other one, with one call: the word says where the block goes "
    "to, and where it came from."
)
_LARGEST, _BETWEEN, _ARROW = 2.2, 0.5, 1.5


class Slice(NamedTuple):
    """A part of a tensor: its first index and its shape, and the shape of the whole."""

    first: tuple[int, ...]
    shape: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def of(cls, part: "Tensor", whole: "Tensor") -> "Slice":
        """A view, and the tensor that it is a view of."""
        offset, first = part.storage_offset() - whole.storage_offset(), []
        for stride in whole.stride():
            first.append(offset // stride)
            offset %= stride
        return cls(tuple(first), tuple(part.shape), tuple(whole.shape))

    def overlap(self, other: "Slice") -> list[range]:
        """The indices that are in both, by dimension; one is empty if they do not meet."""
        both = zip(self.first, self.shape, other.first, other.shape, strict=True)
        return [range(max(a, b), min(a + n, b + m)) for a, n, b, m in both]


@dataclass(frozen=True)
class Slices:
    """By the name of a matrix, the slice that this rank holds. It prints their shapes.

    `axes`: what a row and a column stand for. With a `call` there are two slices of one matrix, of
    which the call makes the second from the first.
    """

    slices: dict[str, Slice]
    axes: tuple[str, str] = ("output", "input")
    call: str = ""

    def __str__(self) -> str:
        shapes = (f"{name} {list(one.shape)}" for name, one in self.slices.items())
        return ", ".join(shapes)

    @property
    def shows(self) -> str:
        return (
            f"Who holds which part before and after {self.call}"
            if self.call
            else "Who holds which part of a matrix"
        )

    @default_style
    def draw(self, title: str, ranks: Sequence["Slices"]) -> Canvas:
        """All on one scale. The slice of a rank has the gid <name>/r<rank>."""
        shapes = [one.whole for one in self.slices.values()]
        between = _ARROW if self.call else _BETWEEN
        room = WIDEST - 3 * MARGIN - between * (len(shapes) - 1)
        highest = max(height for height, _ in shapes)
        across = sum(width for _, width in shapes)
        scale = min(room / across, _LARGEST / highest)
        needed = scale * across + between * (len(shapes) - 1) + 3 * MARGIN
        page = min(max(needed, 2 * MARGIN + breadth(title, 11), 4.6), WIDEST)
        canvas, x, y, told = Canvas(title, page), 2 * MARGIN, TOP + 4.2 * LINE, []
        canvas.chips(len(ranks))
        for name, (height, width) in zip(self.slices, shapes, strict=True):
            canvas.write(x, y - 1.7 * LINE, name.removesuffix(".weight"), weight="bold")
            self._name_axes(canvas, x, y, scale * height)
            canvas.cell((x, y, scale * width, scale * height), "", LIGHT, edgecolor=GREY)
            for rank, one in enumerate(rank.slices[name] for rank in ranks):
                row, column = one.first
                rows, columns = one.shape
                box = x + scale * column, y + scale * row, scale * columns, scale * rows
                canvas.cell(box, "", colour_of(rank), f"{name}/r{rank}")
                part = f"{rows} x {columns} of {height} x {width}"
                told.append(f"{name}: rank {rank} holds {part}, from {one.first} on.")
            if self.call:
                self._name_blocks(canvas, name, ranks, (x, y, scale))
            x += scale * width + between
        words = f"{title}. {' '.join(told)}"
        legend = f"{_COLOURS} {_EXCHANGED}" if self.call else _COLOURS
        if self.call:
            end, middle = x - between - scale * width, y + scale * highest / 2
            points = [(end - between + 0.1, middle), (end - 0.3, middle)]
            canvas.arrow(points, "call", linewidth=1.6, mutation_scale=13)
            canvas.write(sum(at for at, _ in points) / 2, middle - 0.15, self.call, ha="center")
        return canvas.end_with(legend, y + scale * highest, words)

    def _name_axes(self, canvas: Canvas, x: float, y: float, height: float) -> None:
        rows, columns = self.axes
        canvas.write(x, y - 0.6 * LINE, f"{columns} \N{RIGHTWARDS ARROW}")
        side = {"rotation": 90, "ha": "center", "va": "top"}
        canvas.write(x - 0.12, y, f"\N{LEFTWARDS ARROW} {rows}", **side)

    def _name_blocks(
        self, canvas: Canvas, name: str, ranks: Sequence["Slices"], place: tuple
    ) -> None:
        """Where the parts of a slice go to, or came from."""
        first, last = self.slices
        x, y, scale = place
        for giver, gives in enumerate(one.slices[first] for one in ranks):
            for taker, takes in enumerate(one.slices[last] for one in ranks):
                rows, columns = overlap = gives.overlap(takes)
                if all(overlap):
                    mine, word = (
                        (giver, f"to {taker}") if name == first else (taker, f"from {giver}")
                    )
                    box = (x + scale * columns.start, y + scale * rows.start)
                    box += (scale * len(columns), scale * len(rows))
                    word = "" if giver == taker else word
                    gid, look = f"{name}/{giver}-{taker}", {"edgecolor": LIGHT}
                    canvas.cell(box, word, colour_of(mine), gid, size=VALUE, **look)
