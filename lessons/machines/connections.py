"""Who connects to whom: processes on machines, with arrows from the one that calls the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collectives.pictures.colours import DARK, GREY, PAGE, colour_of
from collectives.pictures.page import (
    LINE,
    MARGIN,
    TOP,
    WIDEST,
    Canvas,
    Look,
    breadth,
    default_style,
)

_PITCH, _TALL = 0.56, 0.3


@dataclass(frozen=True)
class Connections:
    """What a step in a lab returns: what was printed, and a plan of who connects to whom.

    `machines` has the processes of each machine. `links` says in words what an arrow is, from which
    process to which, as in {"reads": [("node0/rank 0", "login/store")]}. The arrows of one kind
    share a number, which is explained below them. A pair that is there in both orders is one arrow
    with two heads.
    """

    rows: dict | list
    machines: Mapping[str, Sequence[str]]
    links: Mapping[str, Sequence[tuple[str, str]]]

    shows = "Which process connects to which"

    @default_style
    def draw(self, title: str, ranks: Sequence["Connections"]) -> Canvas:
        step = min(2.9, (WIDEST - MARGIN) / len(self.machines))
        top = TOP + 0.4
        canvas = Canvas(title, MARGIN + step * len(self.machines))
        places: dict[str, tuple[float, float, float]] = {}
        for column, (machine, processes) in enumerate(self.machines.items()):
            left, width = MARGIN + step * column, step - 0.75
            canvas.frame((left, top, width, _PITCH * len(processes)))
            canvas.write(left + width / 2, top - 0.6 * LINE, machine, ha="center")
            wide = max(breadth(one, 9) for one in processes) + 0.2
            for row, process in enumerate(processes):
                x, y = left + width / 2, top + _PITCH * (row + 0.5)
                places[f"{machine}/{process}"] = x, y, wide
                box = x - wide / 2, y - _TALL / 2, wide, _TALL
                look: Look = {"edgecolor": GREY}
                colour = PAGE
                if process.startswith("rank "):
                    colour, look = colour_of(int(process.split()[1])), {}
                canvas.cell(box, process, colour, bold=True, size=9, **look)
        for number, links in enumerate(self.links.values(), 1):
            for start, end in links:
                both = (end, start) in links
                if not both or start < end:
                    style = "<|-|>" if both else "-|>"
                    _link(canvas, places[start], places[end], number, style, f"{start}-{end}")
        y = top + _PITCH * max(map(len, self.machines.values()))
        for number, words in enumerate(self.links, 1):
            y = canvas.paragraph(f"{number}: {words}", y)
        told = (
            f"{words.rstrip('.')}: {', '.join(f'{start} to {end}' for start, end in links)}."
            for words, links in self.links.items()
        )
        return canvas.end(y + LINE / 2 + MARGIN, f"{title}. {' '.join(told)}")


def _link(canvas: Canvas, start, end, number: int, style: str, gid: str) -> None:
    (x0, y0, wide0), (x1, y1, wide1) = start, end
    look = {"arrowstyle": style, "color": DARK, "linewidth": 1.2, "mutation_scale": 9}
    if x0 == x1 and abs(y1 - y0) < 1.5 * _PITCH:  # from one process to the next on this machine
        down = 1 if y1 > y0 else -1
        points = [(x0, y0 + down * _TALL / 2), (x1, y1 - down * _TALL / 2)]
        at = x0 + 0.13, (y0 + y1) / 2
    elif x0 == x1:  # around those between them
        side = x0 + wide0 / 2
        points = [(side, y0), (side + 0.25, y0), (side + 0.25, y1), (side, y1)]
        at = side + 0.37, y1 + (_PITCH / 2 if y0 > y1 else -_PITCH / 2)  # between two rows
    else:
        right = 1 if x1 > x0 else -1
        points = [(x0 + right * wide0 / 2, y0), (x1 - right * wide1 / 2, y1)]
        at = (points[0][0] + points[1][0]) / 2, (y0 + y1) / 2 - 0.13
    canvas.arrow(points, gid, **look)
    canvas.write(*at, str(number), ha="center")
