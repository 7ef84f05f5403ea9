"""Time and bus bandwidth by size: a curve for each call."""

import itertools
from pathlib import Path

import numpy as np

from collectives.pictures.colours import PAGE, PALETTE, edge

# Bytes, microseconds and GB/s of each size.
Points = list[tuple[int, float, float]]


def draw(curves: dict[str, Points], title: str, path: Path) -> None:
    """Write a picture; its suffix says which kind. Sizes of 0 bytes are left out."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), facecolor=PAGE, layout="constrained")
    figure.suptitle(title)
    times, bandwidths = figure.subplots(1, 2, subplot_kw={"facecolor": PAGE, "xscale": "log"})
    times.set(yscale="log", xlabel="bytes", ylabel="time, µs")
    bandwidths.set(xlabel="bytes", ylabel="bus bandwidth, GB/s")
    for (name, points), colour in zip(curves.items(), itertools.cycle(PALETTE)):
        sizes, us, busbw = np.reshape([point for point in points if point[0]], (-1, 3)).T
        style = {"color": edge(colour), "label": name, "markersize": 4}
        times.plot(sizes, us, "o-", **style)
        bandwidths.plot(sizes, busbw, "o-", **style)
    bandwidths.set_ylim(bottom=0)
    times.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
