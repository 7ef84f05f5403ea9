"""Who sends to whom on two machines, and how much of it goes through the cable between them."""

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from collectives.pictures.colours import LIGHT, PALETTE, edge
from collectives.pictures.page import LINE, MARGIN, WIDEST, Canvas, wrapped

_CHIP, _PITCH = 0.66, 0.46
_INSIDE, _OUT, _BACK = "#555555", edge(PALETTE[5]), edge(PALETTE[4])
_LEGEND = (
    "Red: from node0 through its cable to node1. Blue: back. Grey: on one machine. The bar shows "
    "the bytes that leave node0."
)


class Wiring(NamedTuple):
    """A panel. `machines`: the ranks of each, from top to bottom; `sends`: (from, to)."""

    name: str
    machines: tuple[Sequence[int], Sequence[int]]
    sends: Sequence[tuple[int, int]]
    megabytes: float  # from node0 to node1


def draw(panels: Sequence[Wiring], *, title: str = "") -> Figure:
    """The figure, for `picture.svg` and `picture.save`. An arrow has the gid <name>/r0-r1."""
    with matplotlib.style.context("default"):
        figure = _drawn(panels, title)
    figure.set_label(f"{title or 'What goes through a cable'}. {describe(panels)}")
    return figure


def describe(panels: Sequence[Wiring]) -> str:
    """The same in sentences, for readers who cannot see it."""
    return " ".join(
        f"{one.name}: node0 has ranks {_list(one.machines[0])}, node1 {_list(one.machines[1])}; "
        f"from node0 to node1 {_list(f'rank {a} sends to rank {b}' for a, b in _leaving(one))}, "
        f"{one.megabytes:.1f} MB."
        for one in panels
    )


def _list(parts) -> str:
    return ", ".join(map(str, sorted(parts)))


def _leaving(one: Wiring) -> list[tuple[int, int]]:
    return [(a, b) for a, b in one.sends if a in one.machines[0] and b in one.machines[1]]


def _drawn(panels: Sequence[Wiring], title: str) -> Figure:
    step = (WIDEST - MARGIN) / len(panels)
    most = max(one.megabytes for one in panels)
    top = MARGIN + 0.35 + 2.4 * LINE
    bottom = top + _PITCH * max(len(ranks) for one in panels for ranks in one.machines) + 0.15
    lines = wrapped(_LEGEND, WIDEST - 2 * MARGIN)
    canvas = Canvas(WIDEST, bottom + 2.6 * LINE + LINE * len(lines) + MARGIN)
    canvas.write(MARGIN, MARGIN + 0.1, title, 10, weight="bold", gid="title")
    for number, one in enumerate(panels):
        left, width = MARGIN + step * number, step - MARGIN
        canvas.write(left, top - 1.9 * LINE, one.name, 10, weight="bold")
        _panel(canvas, one, left, width, top)
        words = f"node0 to node1: {one.megabytes:.1f} MB"
        canvas.write(left, bottom + 0.6 * LINE, words, 10, weight="bold")
        canvas.box(left, bottom + 1.3 * LINE, width * one.megabytes / most, 0.14, _OUT)
    canvas.lines(MARGIN, bottom + 3.2 * LINE, lines)
    return canvas.figure


def _panel(canvas: Canvas, one: Wiring, left: float, width: float, top: float) -> None:
    places = {}
    for machine, ranks in enumerate(one.machines):
        x = left + 0.2 if machine == 0 else left + width - _CHIP - 0.2
        height = _PITCH * len(ranks)
        look = {"facecolor": LIGHT, "edgecolor": _INSIDE, "linewidth": 0.8, "zorder": 0}
        shape = "round,pad=0,rounding_size=0.08"
        frame = FancyBboxPatch((x - 0.2, top), _CHIP + 0.4, height, boxstyle=shape, **look)
        canvas.axes.add_patch(frame)
        canvas.write(x + _CHIP / 2, top - 0.6 * LINE, f"node{machine}", ha="center")
        for number, rank in enumerate(ranks):
            places[rank] = (x, top + _PITCH * (number + 0.5))
            canvas.chip(*places[rank], rank)
    for a, b in one.sends:
        gid = f"{one.name}/r{a}-r{b}"
        if (a in one.machines[0]) == (b in one.machines[0]):
            _inside(canvas, places[a], places[b], left + width / 2, gid)
        else:
            _across(canvas, places[a], places[b], gid)


def _inside(canvas: Canvas, tail, head, middle: float, gid: str) -> None:
    """Between neighbours straight, else around the ranks between them, away from the cable."""
    down = 1 if head[1] > tail[1] else -1
    look = {"color": _INSIDE, "linewidth": 1.1}
    if abs(head[1] - tail[1]) < 1.5 * _PITCH:
        x = tail[0] + _CHIP / 2
        _arrow(canvas, (x, tail[1] + down * 0.14), (x, head[1] - down * 0.14), gid, **look)
        return
    is_left = tail[0] < middle
    x = tail[0] - 0.01 if is_left else tail[0] + _CHIP + 0.01
    bend = 0.26 * down * (1 if is_left else -1)
    _arrow(canvas, (x, tail[1]), (x, head[1]), gid, connectionstyle=f"arc3,rad={bend}", **look)


def _across(canvas: Canvas, tail, head, gid: str) -> None:
    out = head[0] > tail[0]
    begin = (tail[0] + (_CHIP + 0.03 if out else -0.03), tail[1] - 0.04 * (1 if out else -1))
    end = (head[0] + (-0.03 if out else _CHIP + 0.03), head[1] - 0.04 * (1 if out else -1))
    _arrow(canvas, begin, end, gid, color=_OUT if out else _BACK, linewidth=2)


def _arrow(canvas: Canvas, begin, end, gid: str, **look) -> None:
    look = {
        "arrowstyle": "-|>",
        "mutation_scale": 9,
        "shrinkA": 0,
        "shrinkB": 0,
        "zorder": 3,
    } | look
    canvas.axes.add_patch(FancyArrowPatch(begin, end, gid=gid, **look))
