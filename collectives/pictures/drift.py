"""A number that each rank changes by itself, until a broadcast makes it that of rank 0 again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectives.pictures.colours import PALETTE, edge
from collectives.pictures.page import LINE, MARGIN, WIDEST, Canvas, default_style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEFT, _HEIGHT, _PART = MARGIN + 0.7, 2.4, 0.75
_GREY = "#767676"


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
    def draw(self, title: str, ranks: Sequence[Drift]) -> Figure:
        """A line for each step of a rank, with the gid <step>/r<rank>."""
        values = [value for rank in ranks for step in rank.steps for value in step]
        low, high = min(values), max(values)
        legend = wrapped(
            f"{self.what} Coloured: each rank changes it in a step. Dotted: before the next step, "
            "all ranks get the number of rank 0.",
            WIDEST - 2 * MARGIN,
        )
        top = MARGIN + 0.35 + 2.6 * LINE
        bottom = top + _HEIGHT
        canvas = Canvas(WIDEST, bottom + LINE * (len(legend) + 2) + MARGIN)
        canvas.title(title)
        for rank in range(len(ranks)):
            canvas.chip(MARGIN + 0.8 * rank, MARGIN + 0.35 + 0.6 * LINE, rank)

        def y(value: float) -> float:
            # Rounded: the last bits differ from machine to machine.
            return round(bottom - _HEIGHT * (value - low) / ((high - low) or 1.0), 4)

        for value in (low, high):
            canvas.write(_LEFT - 0.12, y(value), f"{value:.3f}", ha="right")
            canvas.axes.plot([_LEFT - 0.08, _LEFT - 0.02], [y(value)] * 2, color=_GREY, lw=0.8)
        width = (WIDEST - _LEFT - MARGIN) / len(self.steps)
        for number in range(len(self.steps)):
            x = _LEFT + width * number
            canvas.write(
                x + _PART * width / 2, bottom + LINE, f"step {self.done + number + 1}", ha="center"
            )
            for rank, one in enumerate(ranks):
                before, after = one.steps[number]
                if one.steps[number + 1 :]:
                    ys = [y(after), y(one.steps[number + 1][0])]
                    canvas.axes.plot([x + _PART * width, x + width], ys, ":", color=_GREY, lw=1)
                canvas.axes.plot(
                    [x, x + _PART * width],
                    [y(before), y(after)],
                    color=edge(PALETTE[rank]),
                    linewidth=2,
                    gid=f"{number}/r{rank}",
                )
        canvas.lines(MARGIN, bottom + 2.3 * LINE, legend)
        canvas.figure.set_label(f"{title}. {self.what} {_describe(ranks)}")
        return canvas.figure


def _describe(ranks: Sequence[Drift]) -> str:
    """The picture in sentences, for readers who cannot see it."""
    found = []
    for number in range(len(ranks[0].steps)):
        one_step = (rank.steps[number] for rank in ranks)
        said = [f"{a:.3f} to {b:.3f} on rank {rank}" for rank, (a, b) in enumerate(one_step)]
        found.append(f"Step {ranks[0].done + number + 1}: {', '.join(said)}.")
    return " ".join(found)
