"""Who holds which slice of a matrix: the matrix as a rectangle, in the colours of the ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from collectives.pictures.colours import GREY, LIGHT, colour_of
from collectives.pictures.page import LINE, MARGIN, TOP, WIDEST, Canvas, default_style

if TYPE_CHECKING:
    from torch import Tensor

_LEGEND = (
    "Each rectangle is the weight of nn.Linear: a row for each output, a column for each input."
)
_COLOURS = "The colour is that of the rank that holds this part."
_LARGEST, _BETWEEN = 2.2, 0.35


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


@dataclass(frozen=True)
class Slices:
    """By the name of a matrix, the slice that this rank holds. It prints their shapes."""

    slices: dict[str, Slice]
    legend: str = _LEGEND

    def __str__(self) -> str:
        shapes = (f"{name} {list(one.shape)}" for name, one in self.slices.items())
        return ", ".join(shapes)

    @default_style
    def draw(self, title: str, ranks: Sequence["Slices"]) -> Canvas:
        """All on one scale. The slice of a rank has the gid <name>/r<rank>."""
        shapes = [one.whole for one in self.slices.values()]
        room = WIDEST - 2 * MARGIN - _BETWEEN * (len(shapes) - 1)
        highest = max(height for height, _ in shapes)
        scale = min(room / sum(width for _, width in shapes), _LARGEST / highest)
        canvas, x, y, told = Canvas(title), MARGIN, TOP + 3.2 * LINE, []
        canvas.chips(len(ranks))
        for name, (height, width) in zip(self.slices, shapes, strict=True):
            canvas.write(x, y - 0.7 * LINE, name.removesuffix(".weight"))
            canvas.cell((x, y, scale * width, scale * height), "", LIGHT, edgecolor=GREY)
            for rank, one in enumerate(rank.slices[name] for rank in ranks):
                row, column = one.first
                rows, columns = one.shape
                box = x + scale * column, y + scale * row, scale * columns, scale * rows
                canvas.cell(box, "", colour_of(rank), f"{name}/r{rank}")
                part = f"{rows} x {columns} of {height} x {width}"
                told.append(f"{name}: rank {rank} holds {part}, from {one.first} on.")
            x += scale * width + _BETWEEN
        words = f"{title}. {' '.join(told)}"
        return canvas.end_with(f"{self.legend} {_COLOURS}", y + scale * highest, words)
