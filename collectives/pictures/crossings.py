"""Seconds by size: a curve for each algorithm, and where two of them cross."""

import itertools
from pathlib import Path

import numpy as np

from collectives.pictures.colours import DARK, PAGE, PALETTE, edge

_SMALL = 8.5  # points: 11.3 pixels
Points = list[tuple[float, float]]


def fastest(curves: dict[str, Points]) -> list[tuple[float, str]]:
    """From which size on which curve is the lowest, among the sizes that all curves have."""
    names = list(curves)
    sizes = [size for size, _ in curves[names[0]]]
    lowest = [min(names, key=lambda name: curves[name][k][1]) for k in range(len(sizes))]
    changes = [k for k in range(len(sizes)) if k == 0 or lowest[k] != lowest[k - 1]]
    return [(sizes[k], lowest[k]) for k in changes]


def draw(curves: dict[str, Points], points: dict[str, Points], title: str, path: Path) -> None:
    """Write a picture; its suffix says which kind. `points` are drawn as dots beside the curves."""
    figure(curves, points, title).savefig(path, dpi=150)


def figure(
    curves: dict[str, Points], points: dict[str, Points], title: str, against: str | None = None
):
    """The same as a figure, for `picture.svg`.

    Labelled is where the fastest curve changes; with `against`, how many times faster than that
    curve the fastest one is.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    drawn = Figure(figsize=(8.8, 5.4), facecolor=PAGE, layout="constrained")
    axes = drawn.add_subplot(facecolor=PAGE, xscale="log", yscale="log")
    for (name, curve), colour in zip(curves.items(), itertools.cycle(PALETTE)):
        axes.plot(*np.transpose(curve), color=edge(colour), label=name, linewidth=1.8)
        if points.get(name):
            axes.plot(*np.transpose(points[name]), "o", color=edge(colour), markersize=5)
    if against:
        _label_ratios(axes, curves, against)
    else:
        _label_changes(axes, curves)
    axes.set(xlabel="size", ylabel="time", title=title)
    axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.yaxis.set_major_formatter(EngFormatter("s"))
    axes.legend(frameon=False, loc="upper left" if against else "lower right", fontsize=_SMALL)
    drawn.set_label(f"Curves of {title}, seconds by bytes. {in_words(curves)}.")
    return drawn


def _label_ratios(axes, curves: dict[str, Points], against: str) -> None:
    axes.margins(x=0.08)  # room for the last label
    for k, (size, seconds) in enumerate(curves[against]):
        least = min(curve[k][1] for curve in curves.values())
        axes.plot(size, least, "o", color=DARK, markersize=4)
        if least < seconds:
            place = {"xytext": (7, -9), "textcoords": "offset points"}
            text = f"{seconds / least:.2g}x"
            axes.annotate(text, (size, least), fontsize=_SMALL, color=DARK, **place)


def _label_changes(axes, curves: dict[str, Points]) -> None:
    for size, name in fastest(curves)[1:]:
        axes.axvline(size, color=DARK, linewidth=0.6, linestyle=":")
        place = {
            "xycoords": ("data", "axes fraction"),
            "rotation": 90,
            "va": "top",
            "ha": "right",
        }
        axes.annotate(f"from here on {name}", (size, 0.98), fontsize=_SMALL, color=DARK, **place)


def in_words(curves: dict[str, Points]) -> str:
    """ "fastest is tree, from 4 bytes on ring" """
    (_, first), *rest = fastest(curves)
    return ", ".join(
        [f"fastest is {first}", *(f"from {size} bytes on {name}" for size, name in rest)]
    )
