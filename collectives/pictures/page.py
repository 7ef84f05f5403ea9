"""The page that every picture is drawn on: its ground, its greatest width, its letters.

All lengths are inches from the top left, and 96 pixels are an inch.
"""

import re
import textwrap

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from collectives.pictures.colours import DARK, PAGE, PALETTE, edge, ink

WIDEST = 850 / 96  # the column of a notebook: a wider picture would shrink, and its letters with it
SMALL, VALUE = 8.5, 12  # points: 11.3 and 16 pixels
MARGIN, LINE = 0.2, 0.21


class Canvas:
    """A figure on which things are placed in inches from the top left."""

    def __init__(self, width: float, height: float):
        self.figure = Figure(figsize=(width, height), dpi=100, facecolor=PAGE)
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        self.axes.axis("off")

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
        look = {"edgecolor": edge(colour), "linewidth": 0.8}
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
        **look,
    ) -> None:
        look = {"facecolor": colour, "gid": gid, "clip_on": False, "linewidth": 0} | look
        self.axes.add_patch(Rectangle((x, y), width, height, **look))


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
