"""Buckets under a backward pass: when each gradient comes, and from when on a bucket travels."""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.pictures.colours import PAGE, PALETTE
from collectives.pictures.page import LINE, MARGIN, TOP, WIDEST, Canvas, Look, default_style

_HEIGHT, _PITCH, _LEFT = 0.28, 0.33, MARGIN + 1.0
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

    shows = "When each bucket is sent, beside the gradients of a backward pass"

    @default_style
    def draw(self, title: str, ranks: Sequence["BucketOrder"]) -> Canvas:
        """A lane of gradients, and one for each bucket, with the gid <pass>/<number>."""
        canvas, top, told = Canvas(title), TOP, []
        longest = max(len(gradients) for gradients, _ in self.passes.values())
        slot = (WIDEST - _LEFT - MARGIN) / (longest + 1)  # the last one is that of wait()
        for name, (gradients, buckets) in self.passes.items():
            canvas.write(MARGIN, top + LINE, name, weight="bold")
            top += 1.8 * LINE
            canvas.write(MARGIN, top + _HEIGHT / 2, "backward()")
            for number, (gradient, _) in enumerate(gradients):
                box = _LEFT + slot * number, top, slot, _HEIGHT
                look: Look = {"edgecolor": PAGE, "linewidth": 1}
                canvas.cell(box, gradient, PALETTE[7], f"{name}/{gradient}", **look)
            order = ", ".join(gradient for gradient, _ in gradients)
            told.append(f"{name}: backward() computes {order}.")
            end = len(gradients) + 1
            for number, (start, size) in enumerate(zip(_starts(gradients), buckets, strict=True)):
                top += _PITCH
                canvas.write(MARGIN, top + _HEIGHT / 2, f"bucket {number + 1}")
                box = _LEFT + slot * start, top, slot * (end - start), _HEIGHT
                canvas.cell(box, f"{size:,} bytes", PALETTE[1], f"{name}/{number}", linewidth=1)
                told.append(f"{size:,} bytes start after {gradients[start - 1][0]}.")
            top += _PITCH
        return canvas.end_with(_LEGEND, top, f"{title}. {' '.join(told)}")


def _starts(gradients: Sequence[tuple[str, int]]) -> list[int]:
    """For each bucket, how many gradients were there when it was started."""
    counts = [0, *(count for _, count in gradients)]
    return [at for at in range(1, len(counts)) for _ in range(counts[at] - counts[at - 1])]
