"""Curves over the steps of a training: one line for each rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collectives.pictures.colours import DARK, PAGE, colour_of, edge
from collectives.pictures.page import SMALL, VALUE, default_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHES = ("-", "--", ":", "-.", (0, (8, 2, 2, 2, 2, 2)), (0, (3, 3)))


@dataclass(frozen=True)
class Curve:
    """A number after each step of a training: printed as the first and the last, drawn as a line.

    `values` has a list by name instead if several lines belong into one figure. `label` says what
    the numbers are, and `done` how many steps were made before the first of them. A step has
    `per_step` numbers. On a `log` scale nothing is printed but how many there are: a rounding error
    differs from machine to machine. `marks` are words at a step, such as where a rank was killed.
    `title` is that of the picture, if it is not about what comes after each step.

    >>> print(Curve([2.0, 1.0, 0.5], "loss of rank 0"))
    2.0000 ... 0.5000
    """

    values: list[float] | dict[str, list[float]]
    label: str = "loss"
    log: bool = False
    done: int = 0
    per_step: int = 1
    marks: dict[float, str] = field(default_factory=dict)
    title: str = ""

    def __str__(self) -> str:
        if isinstance(self.values, dict):
            return ", ".join(f"{name}: {self._text(one)}" for name, one in self.values.items())
        return self._text(self.values)

    def _text(self, values: list[float]) -> str:
        if self.log:
            return f"{len(values)} values"
        ends = (f"{x:.4f}" if isinstance(x, float) else str(x) for x in (values[0], values[-1]))
        return " ... ".join(ends)

    def _by_name(self) -> dict[str, list[float]]:
        return self.values if isinstance(self.values, dict) else {self.label: self.values}

    @property
    def shows(self) -> str:
        return self.title or f"The {self.label} after each step"

    @default_style
    def draw(self, title: str, ranks: Sequence[Curve]) -> Figure:
        """Where all ranks have the same values there is one line, without a rank.

        Values that a logarithmic scale cannot show are left out.
        """
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(7.2, 3.2), dpi=100, facecolor=PAGE, layout="constrained")
        axes = figure.add_subplot(facecolor=PAGE)
        sentences = []
        for number, name in enumerate(self._by_name()):
            lines = _lines(name, [curve._by_name()[name] for curve in ranks], self.log)
            for rank, (label, values) in enumerate(lines.items()):
                # Colours alone look alike.
                dashes = _DASHES[(2 * number + rank) % len(_DASHES)]
                colour = edge(colour_of(rank))
                steps = [self.done + (k + 1) / self.per_step for k in range(len(values))]
                look: dict[str, Any] = {"linestyle": dashes, "color": colour, "linewidth": 1.5}
                axes.plot(steps, values, label=label, **look)
                ends = f"{values[0]:.2g} to {values[-1]:.2g}"
                count = len(values) // self.per_step
                sentences.append(f"{label} goes from {ends} in {count} steps")
        for step, words in self.marks.items():
            axes.axvline(step, color=DARK, linewidth=0.9, linestyle=":")
            look = {"va": "bottom", "ha": "right", "fontsize": SMALL, "rotation": 90}
            axes.text(step, 0.02, f"{words} ", transform=axes.get_xaxis_transform(), **look)
            sentences.append(f"at step {step:g}: {words}")
        if self.log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:.0e}")
            axes.yaxis.set_minor_formatter("")
        axes.set_xlabel("step", fontsize=SMALL)
        axes.set_ylabel(self.label, fontsize=SMALL)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(title, fontsize=VALUE)
        axes.tick_params(labelsize=SMALL)
        figure.legend(loc="outside right upper", fontsize=SMALL, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        figure.set_label(f"{title}: {'; '.join(sentences)}.")
        return figure


def _lines(name: str, ranks: Sequence[Sequence[float]], log: bool) -> dict[str, list[float]]:
    """By label, the values in four digits: the last bits differ from machine to machine."""
    rounded = [
        [float(f"{value:.3e}") if value > 0 or not log else math.nan for value in values]
        for values in ranks
    ]
    if all(values == ranks[0] for values in ranks):
        return {f"{name}, every rank" if len(ranks) > 1 else name: rounded[0]}
    return {f"{name}, rank {rank}": values for rank, values in enumerate(rounded)}
