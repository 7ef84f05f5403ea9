"""Who sends to whom on two machines, and how much of it goes through the cable between them.

>>> print(Cables([], [Wiring("ring", ([0, 1], [2, 3]), [(1, 2), (3, 0)], megabytes=8.0)]))
ring: 8.0 MB
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from collectives.pictures.colours import GREY, PALETTE, edge
from collectives.pictures.page import CHIP, LINE, MARGIN, TOP, WIDEST, Canvas, default_style

_PITCH = 0.46
_OUT, _BACK = edge(PALETTE[5]), edge(PALETTE[4])
_LEGEND = (
    "Red: from node0 through its cable to node1. Blue: back. Grey: on one machine. The bar shows "
    "the bytes that leave node0."
)


class Wiring(NamedTuple):
    """A panel. `machines`: the ranks of each, from top to bottom; `sends`: (from, to).

    `through` says what goes through the cable: it stands at the arrows.
    """

    name: str
    machines: tuple[Sequence[int], Sequence[int]]
    sends: Sequence[tuple[int, int]]
    megabytes: float  # from node0 to node1
    through: str = ""

    @property
    def size(self) -> str:
        is_small = self.megabytes < 1
        return f"{1000 * self.megabytes:.0f} kB" if is_small else f"{self.megabytes:.1f} MB"

    def __str__(self) -> str:
        node0, node1 = self.machines
        leaving = [(a, b) for a, b in self.sends if a in node0 and b in node1]
        through = f" ({self.through})" if self.through else ""
        return (
            f"{self.name}: node0 has ranks {_list(node0)}, node1 {_list(node1)}; "
            f"from node0 to node1 {_list(f'rank {a} sends to rank {b}' for a, b in leaving)}, "
            f"{self.size}{through}."
        )


@dataclass(frozen=True)
class Cables:
    """Panels to draw side by side. What a step in a lab returns has the rows of its table, too."""

    rows: list[dict]
    panels: Sequence[Wiring]

    def __str__(self) -> str:
        return ", ".join(f"{panel.name}: {panel.size}" for panel in self.panels)

    shows = "Who sends to whom through the cable between two machines"

    @default_style
    def draw(self, title: str, ranks: Sequence["Cables"]) -> Canvas:
        """An arrow has the gid <name of its panel>/r0-r1."""
        step = (WIDEST - MARGIN) / len(self.panels)
        most = max(panel.megabytes for panel in self.panels)
        tallest = max(len(ranks) for panel in self.panels for ranks in panel.machines)
        top = TOP + 2.4 * LINE
        bottom = top + _PITCH * tallest + 0.15
        canvas = Canvas(title)
        for number, panel in enumerate(self.panels):
            left, width = MARGIN + step * number, step - MARGIN
            canvas.write(left, top - 1.9 * LINE, panel.name, 10, weight="bold")
            _draw_panel(canvas, panel, left, width, top)
            size = f"node0 to node1: {panel.size}"
            canvas.write(left, bottom + 0.6 * LINE, size, 10, weight="bold")
            canvas.box((left, bottom + 1.3 * LINE, width * panel.megabytes / most, 0.14), _OUT)
        words = " ".join([f"{title}.", *map(str, self.panels)])
        return canvas.end_with(_LEGEND, bottom + 2.2 * LINE, words)


def _list(parts: Iterable) -> str:
    return ", ".join(map(str, sorted(parts)))


def _draw_panel(canvas: Canvas, panel: Wiring, left: float, width: float, top: float) -> None:
    corners = {}
    if panel.through:
        middle = left + width / 2, top - 0.6 * LINE
        canvas.write(*middle, panel.through, colour=_OUT, ha="center", weight="bold")
    for machine, ranks in enumerate(panel.machines):
        x = left + 0.2 if machine == 0 else left + width - CHIP - 0.2
        canvas.frame((x - 0.2, top, CHIP + 0.4, _PITCH * len(ranks)))
        canvas.write(x + CHIP / 2, top - 0.6 * LINE, f"node{machine}", ha="center")
        for number, rank in enumerate(ranks):
            corners[rank] = (x, top + _PITCH * (number + 0.5))
            canvas.chip(*corners[rank], rank)
    for a, b in panel.sends:
        (x0, y0), (x1, y1) = corners[a], corners[b]
        look: dict[str, Any] = {"mutation_scale": 9, "zorder": 3, "color": GREY, "linewidth": 1.1}
        down = 1 if y1 > y0 else -1
        if x0 != x1:  # through the cable
            out = 1 if x1 > x0 else -1
            tail, head = (CHIP + 0.03, -0.03) if out > 0 else (-0.03, CHIP + 0.03)
            points = [(x0 + tail, y0 - 0.04 * out), (x1 + head, y1 - 0.04 * out)]
            look |= {"color": _OUT if out > 0 else _BACK, "linewidth": 2}
        elif abs(y1 - y0) < 1.5 * _PITCH:
            points = [(x0 + CHIP / 2, y0 + down * 0.14), (x0 + CHIP / 2, y1 - down * 0.14)]
        else:  # around the ranks between them, away from the cable
            is_left = x0 < left + width / 2
            x = x0 - 0.01 if is_left else x0 + CHIP + 0.01
            points = [(x, y0), (x, y1)]
            look["connectionstyle"] = f"arc3,rad={0.26 * down * (1 if is_left else -1)}"
        canvas.arrow(points, f"{panel.name}/r{a}-r{b}", **look)
