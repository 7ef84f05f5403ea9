"""Machines that are slow together, and with whom each of them is slow alone: a grid of pairs."""

from collections.abc import Sequence

import matplotlib.style
from matplotlib.figure import Figure

from collectives.pictures.colours import PALETTE, WRONG, tint
from collectives.pictures.page import LINE, MARGIN, VALUE, Canvas, wrapped

_LEFT, _TOP = MARGIN + 0.75, MARGIN + 0.35 + 2.4 * LINE
_CELL, _ROW, _BETWEEN = 0.9, 0.5, 0.6
_COLOURS = {False: tint(PALETTE[2]), True: tint(WRONG)}
_LEGEND = "Everybody is slow together. The machine whose row and column are slow is the cause."

Pairs = dict[tuple[int, int], bool]


def draw(together: Sequence[bool], pairs: Pairs, *, title: str = "") -> Figure:
    """The figure, for `picture.svg` and `picture.save`.

    `together`: for each machine, whether it was slow when all took part; `pairs`: whether two were
    slow by themselves. A cell has the gid all/<machine> or pair/<machine>-<machine>.
    """
    with matplotlib.style.context("default"):
        figure = _drawn(together, pairs, title)
    figure.set_label(f"{title or 'Pairs of machines'}. {describe(together, pairs)}")
    return figure


def describe(together: Sequence[bool], pairs: Pairs) -> str:
    """The same in sentences, for readers who cannot see it."""
    words = {True: "slow", False: "fast"}
    alone = (f"node{a} and node{b} alone are {words[slow]}." for (a, b), slow in pairs.items())
    all_of_them = (f"node{machine} is {words[slow]}" for machine, slow in enumerate(together))
    return " ".join([f"All together: {', '.join(all_of_them)}.", *alone])


def _drawn(together: Sequence[bool], pairs: Pairs, title: str) -> Figure:
    machines = range(len(together))
    right = _LEFT + _CELL + _BETWEEN
    width, bottom = right + _CELL * len(machines) + MARGIN, _TOP + _ROW * len(machines)
    lines = wrapped(_LEGEND, width - 2 * MARGIN)
    canvas = Canvas(width, bottom + LINE * len(lines) + MARGIN)
    canvas.write(MARGIN, MARGIN + 0.1, title, 10, weight="bold", gid="title")
    canvas.write(_LEFT + _CELL / 2, _TOP - 1.6 * LINE, "all together", ha="center")
    middle = right + _CELL * len(machines) / 2
    canvas.write(middle, _TOP - 1.6 * LINE, "two of them alone: with", ha="center")
    for machine in machines:
        y = _TOP + _ROW * machine
        canvas.write(MARGIN, y + _ROW / 2, f"node{machine}", 10, weight="bold")
        canvas.write(
            right + _CELL * (machine + 0.5), _TOP - 0.6 * LINE, f"node{machine}", ha="center"
        )
        _cell(canvas, _LEFT, y, together[machine], f"all/{machine}")
        for other in machines:
            slow = pairs.get((min(machine, other), max(machine, other)))
            if slow is not None:
                _cell(canvas, right + _CELL * other, y, slow, f"pair/{machine}-{other}")
    canvas.lines(MARGIN, bottom + 0.8 * LINE, lines)
    return canvas.figure


def _cell(canvas: Canvas, x: float, y: float, slow: bool, gid: str) -> None:
    look = {"edgecolor": WRONG, "linewidth": 1.8, "zorder": 1.5} if slow else {}
    canvas.box(
        x, y, _CELL, _ROW, _COLOURS[slow], gid, **{"edgecolor": "#555555", "linewidth": 0.8} | look
    )
    words = "slow" if slow else "fast"
    canvas.write(x + _CELL / 2, y + _ROW / 2, words, VALUE, ha="center", weight="bold")
