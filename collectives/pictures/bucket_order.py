"""Buckets under a backward pass: when each gradient comes, and from when on a bucket travels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectives.pictures.colours import PAGE, PALETTE, edge, ink
from collectives.pictures.page import LINE, MARGIN, SMALL, WIDEST, Canvas, default_style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT, _BETWEEN, _LEFT = 0.28, 0.05, MARGIN + 1.0
_BACKWARD, _CALL = PALETTE[7], PALETTE[1]
_LEGEND = (
    "From left to right: the order of events on rank 0, and no seconds. backward() computes the "
    "gradients, each drawn one slot wide. The bar of a bucket goes from its start to its wait()."
)


@dataclass(frozen=True)
class BucketOrder:
    """For each name of a backward pass: its gradients in order, and its buckets.

    A gradient is its name, and how many buckets had been started when it was there. A bucket is
    its bytes. It prints the gradients after which a bucket was started.
    """

    passes: dict[str, tuple[Sequence[tuple[str, int]], Sequence[int]]]

    def __str__(self) -> str:
        return "; ".join(
            "starts after " + ", ".join(gradients[at - 1][0] for at in _starts(gradients))
            for gradients, _ in self.passes.values()
        )

    @default_style
    def draw(self, title: str, ranks: Sequence[BucketOrder]) -> Figure:
        """A lane of gradients, and one for each bucket, with the gid <pass>/<number>."""
        longest = max(len(gradients) for gradients, _ in self.passes.values())
        slot = (WIDEST - _LEFT - MARGIN) / (longest + 1)  # the last one is that of wait()
        top = MARGIN + 0.35 + 0.5 * LINE
        lanes = sum(1 + len(buckets) for _, buckets in self.passes.values())
        bottom = top + lanes * (_HEIGHT + _BETWEEN) + 2.4 * LINE * len(self.passes)
        legend = wrapped(_LEGEND, WIDEST - 2 * MARGIN)
        canvas = Canvas(WIDEST, bottom + LINE * len(legend) + MARGIN)
        canvas.title(title)
        for name, (gradients, buckets) in self.passes.items():
            canvas.write(MARGIN, top + LINE / 2, name, weight="bold")
            top += 1.3 * LINE
            canvas.write(MARGIN, top + _HEIGHT / 2, "backward()")
            for number, (gradient, _) in enumerate(gradients):
                gid = f"{name}/{gradient}"
                _bar(canvas, _LEFT + slot * number, top, slot, gradient, _BACKWARD, gid)
            end = _LEFT + slot * (len(gradients) + 1)
            for number, (start, size) in enumerate(zip(_starts(gradients), buckets, strict=True)):
                top += _HEIGHT + _BETWEEN
                x = _LEFT + slot * start
                canvas.write(MARGIN, top + _HEIGHT / 2, f"bucket {number + 1}")
                _bar(canvas, x, top, end - x, f"{size:,} bytes", _CALL, f"{name}/{number}")
            top += _HEIGHT + _BETWEEN + 1.1 * LINE
        canvas.lines(MARGIN, bottom + 0.3 * LINE, legend)
        canvas.figure.set_label(f"{title}. {self._describe()}")
        return canvas.figure

    def _describe(self) -> str:
        """The picture in sentences, for readers who cannot see it."""
        found = []
        for name, (gradients, buckets) in self.passes.items():
            starts = zip(_starts(gradients), buckets, strict=True)
            said = (f"{size:,} bytes start after {gradients[at - 1][0]}" for at, size in starts)
            order = ", ".join(gradient for gradient, _ in gradients)
            found.append(f"{name}: backward() computes {order}; {'; '.join(said)}.")
        return " ".join(found)


def _starts(gradients: Sequence[tuple[str, int]]) -> list[int]:
    """For each bucket, how many gradients were there when it was started."""
    counts = [0, *(count for _, count in gradients)]
    return [at for at in range(1, len(counts)) for _ in range(counts[at] - counts[at - 1])]


def _bar(
    canvas: Canvas, x: float, y: float, width: float, text: str, colour: str, gid: str
) -> None:
    look = {"edgecolor": PAGE if colour == _BACKWARD else edge(colour), "linewidth": 1.0}
    canvas.box(x, y, width, _HEIGHT, colour, gid, **look)
    canvas.write(x + width / 2, y + _HEIGHT / 2, text, SMALL, ink(colour), ha="center")
