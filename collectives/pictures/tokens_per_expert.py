"""How many tokens choose each expert, in each step of a training: a band for each expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectives.pictures.colours import PAGE, PALETTE, ink
from collectives.pictures.page import LINE, MARGIN, SMALL, WIDEST, Canvas, default_style, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT, _BETWEEN = 2.2, 0.4
_LEGEND = (
    "Each band is an expert, in the colour of the rank that holds it. From left to right: the "
    "steps of the training. From bottom to top: the tokens of a step, by the expert that they "
    "chose."
)


@dataclass(frozen=True)
class TokensPerExpert:
    """For each name of a training: by step, the tokens that chose each expert.

    It prints the last steps. All steps have the same number of tokens.
    """

    trainings: dict[str, list[list[int]]]

    def __str__(self) -> str:
        return ", ".join(f"{name}: {steps[-1]}" for name, steps in self.trainings.items())

    @default_style
    def draw(self, title: str, ranks: Sequence[TokensPerExpert]) -> Figure:
        """A panel for each training. The band of an expert has the gid <training>/<expert>."""
        count = len(self.trainings)
        left, top = MARGIN + 0.35, MARGIN + 0.35 + 3 * LINE
        width = (WIDEST - left - MARGIN - _BETWEEN * (count - 1)) / count
        bottom = top + _HEIGHT
        legend = wrapped(_LEGEND, WIDEST - 2 * MARGIN)
        canvas = Canvas(WIDEST, bottom + LINE * (len(legend) + 1.5) + MARGIN)
        canvas.title(title)
        for rank in range(len(ranks)):
            canvas.chip(MARGIN + 0.8 * rank, MARGIN + 0.35 + 0.6 * LINE, rank)
        for number, (name, steps) in enumerate(self.trainings.items()):
            x = left + number * (width + _BETWEEN)
            canvas.write(x, top - 0.7 * LINE, name, 10, weight="bold")
            canvas.write(x, bottom + 0.7 * LINE, "step 1")
            canvas.write(x + width, bottom + 0.7 * LINE, f"step {len(steps)}", ha="right")
            for value in (0, sum(steps[0])):
                y = bottom - _HEIGHT * value / sum(steps[0])
                canvas.write(x - 0.05, y, str(value), SMALL, ha="right")
            _draw_bands(canvas, name, steps, (x, bottom), width, len(ranks))
        canvas.lines(MARGIN, bottom + 2 * LINE, legend)
        canvas.figure.set_label(f"{title}. {self._describe()}")
        return canvas.figure

    def _describe(self) -> str:
        """The picture in sentences, for readers who cannot see it."""
        return " ".join(
            f"{name}, expert {expert}: {steps[0][expert]} tokens in step 1, "
            f"{steps[-1][expert]} in step {len(steps)}."
            for name, steps in self.trainings.items()
            for expert in range(len(steps[0]))
        )


def _draw_bands(
    canvas: Canvas,
    name: str,
    steps: list[list[int]],
    corner: tuple[float, float],
    width: float,
    ranks: int,
) -> None:
    """From the bottom left corner upwards. The number of an expert stands where it has most."""
    from matplotlib.patches import Polygon

    scale, experts = _HEIGHT / sum(steps[0]), len(steps[0])
    xs = [corner[0] + width * step / (len(steps) - 1) for step in range(len(steps))]
    for expert in range(experts):
        low, high = (
            [corner[1] - scale * sum(one[:end]) for one in steps] for end in (expert, expert + 1)
        )
        points = [*zip(xs, low, strict=True), *reversed([*zip(xs, high, strict=True)])]
        colour = PALETTE[expert * ranks // experts]
        look: dict[str, Any] = {"facecolor": colour, "edgecolor": PAGE, "linewidth": 1}
        canvas.axes.add_patch(Polygon(points, gid=f"{name}/{expert}", **look))
        widest = max(range(2, len(steps) - 2), key=lambda step: steps[step][expert])
        if low[widest] - high[widest] > LINE:
            middle = (low[widest] + high[widest]) / 2
            canvas.write(xs[widest], middle, str(expert), SMALL, ink(colour), ha="center")
