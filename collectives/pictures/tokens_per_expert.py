"""How many tokens choose each expert, in each step of a training: a band for each expert."""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.pictures.colours import PAGE, colour_of, ink
from collectives.pictures.page import LINE, MARGIN, SMALL, TOP, WIDEST, Canvas, Look, default_style

_HEIGHT, _BETWEEN, _LEFT, _TOP = 2.2, 0.4, MARGIN + 0.35, TOP + 3 * LINE
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
    def draw(self, title: str, ranks: Sequence["TokensPerExpert"]) -> Canvas:
        """A panel for each training. The band of an expert has the gid <training>/<expert>."""
        from matplotlib.patches import Polygon

        count, bottom = len(self.trainings), _TOP + _HEIGHT
        width = (WIDEST - _LEFT - MARGIN - _BETWEEN * (count - 1)) / count
        canvas, told = Canvas(title), []
        canvas.chips(len(ranks))
        for number, (name, steps) in enumerate(self.trainings.items()):
            tokens, experts, last = sum(steps[0]), len(steps[0]), len(steps)
            left = _LEFT + number * (width + _BETWEEN)
            canvas.write(left, _TOP - 0.7 * LINE, name, 10, weight="bold")
            canvas.write(left, bottom + 0.7 * LINE, "step 1")
            canvas.write(left + width, bottom + 0.7 * LINE, f"step {last}", ha="right")
            canvas.write(left - 0.05, bottom, "0", ha="right")
            canvas.write(left - 0.05, _TOP, str(tokens), ha="right")
            xs = [left + width * step / (last - 1) for step in range(last)]
            low = [bottom] * last
            for expert in range(experts):
                taken = [step[expert] for step in steps]
                high = [y - _HEIGHT * one / tokens for y, one in zip(low, taken, strict=True)]
                colour = colour_of(expert * len(ranks) // experts)
                points = [*zip(xs, low, strict=True), *reversed([*zip(xs, high, strict=True)])]
                look: Look = {"facecolor": colour, "edgecolor": PAGE, "gid": f"{name}/{expert}"}
                canvas.axes.add_patch(Polygon(points, linewidth=1, **look))
                widest = max(range(2, last - 2), key=taken.__getitem__)
                if low[widest] - high[widest] > LINE:  # room for the number of the expert
                    middle = xs[widest], (low[widest] + high[widest]) / 2
                    canvas.write(*middle, str(expert), SMALL, ink(colour), ha="center")
                told.append(
                    f"{name}, expert {expert}: {taken[0]} tokens in step 1, {taken[-1]} in step "
                    f"{last}."
                )
                low = high
        return canvas.end_with(_LEGEND, bottom + 1.2 * LINE, f"{title}. {' '.join(told)}")
