"""The page that every picture is drawn on: its ground, its greatest width, its letters.

All lengths are inches from the top left, and 96 pixels are an inch. matplotlib is imported only
when something is drawn: ranks import results that can draw themselves.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

from collectives.pictures.colours import DARK, PAGE, PALETTE, edge, ink

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

WIDEST = 850 / 96  # the column of a notebook: a wider picture would shrink, and its letters with it
SMALL, VALUE = 8.5, 12  # points: 11.3 and 16 pixels
MARGIN, LINE = 0.2, 0.21

# What figures are drawn and written with, whatever the reader's settings are.
STYLE: list[str | dict[str, Any]] = [
    "default",
    {"svg.hashsalt": "collectives", "svg.fonttype": "none", "hatch.linewidth": 0.5},
]


P = ParamSpec("P")


def default_style(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Mark a function that draws: the reader's settings of matplotlib do not change its figure.

    subtle: a layout that matplotlib computes is fixed: it would change each time that it is saved.
    """

    @functools.wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        import matplotlib.style

        with matplotlib.style.context(STYLE):
            figure = draw(*args, **kwargs)
            if figure.get_layout_engine():
                figure.draw_without_rendering()
                figure.set_layout_engine("none")
        return figure

    return draw_in_style


class Canvas:
    """A figure on which things are placed in inches from the top left."""

    def __init__(self, width: float, height: float):
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(width, height), dpi=100, facecolor=PAGE)
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        self.axes.axis("off")

    def title(self, text: str) -> None:
        self.write(MARGIN, MARGIN + 0.1, text, 10, weight="bold", gid="title")

    def write(
        self, x: float, y: float, text: str, size: float = SMALL, colour: str = DARK, **style
    ) -> None:
        style = {"va": "center_baseline"} | style
        self.axes.text(x, y, text, fontsize=size, color=colour, **style)

    def lines(self, x: float, y: float, lines: list[str], **style) -> None:
        """Lines of small text, the first one centred on `y`."""
        for number, line in enumerate(lines):
            self.write(x, y + number * LINE, line, **style)

    def chip(self, x: float, y: float, rank: int) -> None:
        """The name of a rank on its colour: the key to all other colours."""
        colour = PALETTE[rank]
        look: dict[str, Any] = {"edgecolor": edge(colour), "linewidth": 0.8}
        self.box(x, y - 0.13, 0.66, 0.26, colour, **look)
        self.write(x + 0.33, y, f"rank {rank}", 9, ink(colour), ha="center", weight="bold")

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        colour: str,
        gid: str | None = None,
        **look: Any,
    ) -> None:
        from matplotlib.patches import Rectangle

        look = {"facecolor": colour, "gid": gid, "clip_on": False, "linewidth": 0} | look
        self.axes.add_patch(Rectangle((x, y), width, height, **look))

    def frame(
        self, x: float, y: float, width: float, height: float, radius: float, **look: Any
    ) -> None:
        """A box with round corners."""
        from matplotlib.patches import FancyBboxPatch

        shape = f"round,pad=0,rounding_size={radius}"
        self.axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, **look))

    def arrow(self, points: Sequence[tuple[float, float]], gid: str, **look: Any) -> Patch:
        """An arrow along these points, straight from each to the next.

        With a `connectionstyle` of matplotlib it leads from the first point to the last like that.
        """
        from matplotlib.patches import FancyArrowPatch
        from matplotlib.path import Path

        plain: dict[str, Any] = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "gid": gid}
        if "connectionstyle" in look:
            patch = FancyArrowPatch(points[0], points[-1], **(plain | look))
        else:
            patch = FancyArrowPatch(path=Path(points), **(plain | look))
        self.axes.add_patch(patch)
        return patch


def breadth(text: str, size: float = SMALL) -> float:
    """About how wide a text is, in the widest of the fonts that a browser may choose."""
    return 0.0076 * size * len(text)


def wrapped(text: str, width: float, size: float = SMALL) -> list[str]:
    """The lines of a text that is no wider than this."""
    return textwrap.wrap(text, max(1, int(width / breadth("x", size))))


def split_name(name: str, letters: int) -> list[str]:
    """A long name in lines: it is broken after its underscores and blanks."""
    lines = [""]
    for part in re.findall(r"[^_ ]*[_ ]?", name):
        if lines[-1] and len((lines[-1] + part).rstrip()) > letters:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]
