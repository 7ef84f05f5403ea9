"""Curves over the steps of a training: one line for each rank."""

import math
from collections.abc import Sequence

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from collectives.pictures.colours import PAGE, PALETTE, edge
from collectives.pictures.page import SMALL, VALUE

_LINES = ("-", "--", ":", "-.")


def draw(
    curves: dict[str, Sequence[Sequence[float]]],
    *,
    title: str,
    label: str,
    log: bool = False,
    done: int = 0,
) -> Figure:
    """The figure, for `picture.svg` and `picture.save`.

    `curves` has for each name the values of every rank, in rank order. Where all ranks have the
    same values there is one line, without a rank. `label` says what the values are, and `done` is
    the number of steps before them. Values that a logarithmic scale cannot show are left out.
    """
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(7.2, 3.2), dpi=100, facecolor=PAGE, layout="constrained")
        axes = figure.add_subplot(facecolor=PAGE)
        for number, (name, ranks) in enumerate(curves.items()):
            for rank, (line, values) in enumerate(_lines(name, ranks)):
                style = _LINES[(2 * number + rank) % len(_LINES)]  # colours alone look alike
                colour = edge(PALETTE[rank % len(PALETTE)])
                steps = range(done + 1, done + len(values) + 1)
                axes.plot(steps, values, style, color=colour, label=line, linewidth=1.5)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:.0e}")
            axes.yaxis.set_minor_formatter("")
        axes.set_xlabel("step", fontsize=SMALL)
        axes.set_ylabel(label, fontsize=SMALL)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(title, fontsize=VALUE)
        axes.tick_params(labelsize=SMALL)
        figure.legend(loc="outside right upper", fontsize=SMALL, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.set_label(_in_words(curves, title))
    return figure


def _lines(name: str, ranks: Sequence[Sequence[float]]) -> list[tuple[str, Sequence[float]]]:
    if all(values == ranks[0] for values in ranks):
        return [(f"{name}, every rank" if len(ranks) > 1 else name, _shown(ranks[0]))]
    return [(f"{name}, rank {rank}", _shown(values)) for rank, values in enumerate(ranks)]


def _shown(values: Sequence[float]) -> list[float]:
    """Rounded to four digits: the last bits differ from machine to machine."""
    return [float(f"{value:.3e}") if value > 0 else math.nan for value in values]


def _in_words(curves: dict[str, Sequence[Sequence[float]]], title: str) -> str:
    parts = [
        f"{label} goes from {values[0]:.2g} to {values[-1]:.2g} in {len(values)} steps"
        for name, ranks in curves.items()
        for label, values in _lines(name, ranks)
    ]
    return f"Curves of {title}: {'; '.join(parts)}."
