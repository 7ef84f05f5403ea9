"""Who holds which slice of a matrix: the matrix as a rectangle, in the colours of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from collectives.pictures.colours import LIGHT, PALETTE, edge
from collectives.pictures.page import LINE, MARGIN, SMALL, WIDEST, Canvas, default_style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure
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
    def of(cls, part: Tensor, whole: Tensor) -> Slice:
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
    def draw(self, title: str, ranks: Sequence[Slices]) -> Figure:
        """All on one scale. The slice of a rank has the gid <name>/r<rank>."""
        shapes = [one.whole for one in self.slices.values()]
        room = WIDEST - 2 * MARGIN - _BETWEEN * (len(shapes) - 1)
        scale = min(room / sum(w for _, w in shapes), _LARGEST / max(h for h, _ in shapes))
        top = MARGIN + 0.35 + 3.4 * LINE
        bottom = top + scale * max(h for h, _ in shapes)
        legend = wrapped(f"{self.legend} {_COLOURS}", WIDEST - 2 * MARGIN)
        canvas = Canvas(WIDEST, bottom + LINE * (len(legend) + 1) + MARGIN)
        canvas.title(title)
        for rank in range(len(ranks)):
            canvas.chip(MARGIN + 0.8 * rank, MARGIN + 0.35 + 0.8 * LINE, rank)
        x = MARGIN
        for name, whole in self.slices.items():
            canvas.write(x, top - 0.7 * LINE, name.removesuffix(".weight"), SMALL)
            look: dict[str, Any] = {"edgecolor": "#555555", "linewidth": 0.8}
            height, width = whole.whole
            canvas.box(x, top, scale * width, scale * height, LIGHT, **look)
            for rank, one in enumerate(rank.slices[name] for rank in ranks):
                _draw_slice(canvas, one, (x, top), scale, rank, f"{name}/r{rank}")
            x += scale * width + _BETWEEN
        canvas.lines(MARGIN, bottom + LINE, legend)
        canvas.figure.set_label(f"{title}. {_describe(ranks)}")
        return canvas.figure


def _draw_slice(
    canvas: Canvas, one: Slice, corner: tuple[float, float], scale: float, rank: int, gid: str
) -> None:
    colour = PALETTE[rank]
    x, y = corner[0] + scale * one.first[1], corner[1] + scale * one.first[0]
    height, width = (scale * length for length in one.shape)
    canvas.box(x, y, width, height, colour, gid, edgecolor=edge(colour), linewidth=0.8)


def _describe(ranks: Sequence[Slices]) -> str:
    """The picture in sentences, for readers who cannot see it."""
    found = []
    for name in ranks[0].slices:
        for rank, one in enumerate(rank.slices[name] for rank in ranks):
            part, whole = (" x ".join(map(str, shape)) for shape in (one.shape, one.whole))
            found.append(f"{name}: rank {rank} holds {part} of {whole}, from {one.first} on.")
    return " ".join(found)
