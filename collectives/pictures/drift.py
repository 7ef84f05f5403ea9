"""A number that each rank changes by itself, until a broadcast makes it that of rank 0 again."""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.pictures.colours import GREY, colour_of, edge
from collectives.pictures.page import LINE, MARGIN, TOP, WIDEST, Canvas, Look, default_style

_LEFT, _TOP, _HEIGHT, _PART = MARGIN + 0.7, TOP + 2.6 * LINE, 2.4, 0.75
_LEGEND = (
    "Coloured: each rank changes it in a step. Dotted: before the next step, all ranks get the "
    "number of rank 0."
)


@dataclass(frozen=True)
class Drift:
    """`steps`: the number of this rank before each step and after it. It prints the last one.

    `what` says what the number is, and `done` how many steps were made before the first of these.
    """

    steps: Sequence[tuple[float, float]]
    what: str
    done: int = 0

    def __str__(self) -> str:
        return f"{self.steps[-1][1]:.4f}"

    @default_style
    def draw(self, title: str, ranks: Sequence["Drift"]) -> Canvas:
        """A line for each step of a rank, with the gid <step>/r<rank>."""
        values = [value for rank in ranks for step in rank.steps for value in step]
        low, high = min(values), max(values)
        canvas, told = Canvas(title), []
        canvas.chips(len(ranks))

        def y(value: float) -> float:
            # Rounded: the last bits differ from machine to machine.
            return round(_TOP + _HEIGHT * (high - value) / ((high - low) or 1.0), 4)

        for value in (low, high):
            canvas.write(_LEFT - 0.12, y(value), f"{value:.3f}", ha="right")
            canvas.axes.plot([_LEFT - 0.08, _LEFT - 0.02], [y(value)] * 2, color=GREY, lw=0.8)
        width = (WIDEST - _LEFT - MARGIN) / len(self.steps)
        for number in range(len(self.steps)):
            name, x = f"step {self.done + number + 1}", _LEFT + width * number
            middle, end = x + _PART * width / 2, x + _PART * width
            canvas.write(middle, _TOP + _HEIGHT + LINE, name, ha="center")
            for rank, one in enumerate(ranks):
                before, after = one.steps[number]
                if one.steps[number + 1 :]:
                    ys = [y(after), y(one.steps[number + 1][0])]
                    canvas.axes.plot([end, x + width], ys, ":", color=GREY, lw=1)
                look: Look = {
                    "color": edge(colour_of(rank)),
                    "linewidth": 2,
                    "gid": f"{number}/r{rank}",
                }
                canvas.axes.plot([x, end], [y(before), y(after)], **look)
                told.append(f"In {name}, rank {rank} goes from {before:.3f} to {after:.3f}.")
        words = f"{title}. {self.what} {' '.join(told)}"
        return canvas.end_with(f"{self.what} {_LEGEND}", _TOP + _HEIGHT + 1.4 * LINE, words)
