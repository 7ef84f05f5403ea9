"""Seconds by size: a curve for each algorithm, and where two of them cross."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectives.pictures.colours import DARK, PAGE, PALETTE, edge
from collectives.pictures.page import BELOW, SMALL, default_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABEL: dict[str, Any] = {"fontsize": SMALL, "color": DARK}


@dataclass(frozen=True)
class Times:
    """Seconds by bytes, for each algorithm: printed as which one is the fastest from which size on.

    `curves` has (bytes, seconds) of the same sizes for each name. They must not be measured by the
    step: what is printed should be the same on every machine. `against` is the curve that the
    picture compares the fastest one with. `where` stands in its title, such as 4 ranks on 2 cores.

    >>> print(Times({"tree": [(1, 1.0), (100, 9.0)], "ring": [(1, 3.0), (100, 4.0)]}))
    fastest is tree, from 100 bytes on ring
    """

    curves: dict[str, Sequence[tuple[float, float]]]
    against: str | None = None
    where: str = ""

    def fastest(self) -> list[tuple[float, str]]:
        """From which size on which curve is the lowest."""
        sizes = [size for size, _ in next(iter(self.curves.values()))]
        lowest = [
            min(self.curves, key=lambda name: self.curves[name][k][1]) for k in range(len(sizes))
        ]
        changes = [k for k in range(len(sizes)) if k == 0 or lowest[k] != lowest[k - 1]]
        return [(sizes[k], lowest[k]) for k in changes]

    def __str__(self) -> str:
        (_, first), *rest = self.fastest()
        changes = (f"from {size} bytes on {name}" for size, name in rest)
        return ", ".join([f"fastest is {first}", *changes])

    @property
    def shows(self) -> str:
        return "How long each algorithm takes, by size" + f", {self.where}" * bool(self.where)

    @default_style
    def draw(self, title: str, ranks: Sequence[Times]) -> Figure:
        """Labelled is where the fastest curve changes.

        With `against`, how many times faster than that curve the fastest one is.
        """
        import numpy as np
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter

        figure = Figure(figsize=(8.8, 5.4), facecolor=PAGE, layout="constrained")
        axes = figure.add_subplot(facecolor=PAGE, xscale="log", yscale="log")
        for (name, curve), colour in zip(self.curves.items(), itertools.cycle(PALETTE)):
            line: dict[str, Any] = {"color": edge(colour), "linewidth": 1.8}
            if name == self.against:
                line |= {"color": DARK, "linestyle": "--"}
            axes.plot(*np.transpose(curve), label=name.replace("_", " "), **line)
        if self.against:
            self._label_ratios(axes, self.curves[self.against])
            slower = self.against.replace("_", " ")
            text = f"At a dot: how many times faster the fastest one is than {slower}."
            figure.supxlabel(text, fontsize=SMALL, label=BELOW)
        else:
            self._label_changes(axes)
        axes.set(xlabel="size", ylabel="time", title=title)
        axes.xaxis.set_major_formatter(EngFormatter("B"))
        axes.yaxis.set_major_formatter(EngFormatter("s"))
        look: dict[str, Any] = {"frameon": False, "fontsize": SMALL}
        axes.legend(loc="upper left" if self.against else "lower right", **look)
        figure.set_label(f"{title}, in seconds by bytes. {self}.")
        return figure

    def _label_ratios(self, axes: Axes, against: Sequence[tuple[float, float]]) -> None:
        axes.margins(x=0.08)  # room for the last label
        for k, (size, seconds) in enumerate(against):
            least = min(curve[k][1] for curve in self.curves.values())
            axes.plot(size, least, "o", color=DARK, markersize=4)
            if least < seconds:
                text = f"{seconds / least:.2g}x"
                axes.annotate(text, (size, least), (7, -9), textcoords="offset points", **_LABEL)

    def _label_changes(self, axes: Axes) -> None:
        for size, name in self.fastest()[1:]:
            axes.axvline(size, color=DARK, linewidth=0.6, linestyle=":")
            text, at = f"from here on {name}", axes.get_xaxis_transform()
            axes.text(size, 0.98, text, rotation=90, va="top", ha="right", transform=at, **_LABEL)
