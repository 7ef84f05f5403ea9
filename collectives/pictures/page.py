"""The page that every picture is drawn on: its ground, its greatest width, its letters.

All lengths are inches from the top left, and 96 pixels are an inch. matplotlib is imported only
when something is drawn: ranks import results that can draw themselves.

>>> class Count(int):
...     @default_style
...     def draw(self, title, ranks):
...         canvas = Canvas(title)
...         canvas.write(MARGIN, TOP, str(self))
...         return canvas.end(TOP + LINE, words=f"the number {self}")
>>> Count(3).draw("A number", ranks=[]).get_label()
'the number 3'
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

from collectives.pictures.colours import DARK, GREY, LIGHT, PAGE, colour_of, edge, ink

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

WIDEST = 850 / 96  # the column of a notebook: a wider picture would shrink, and its letters with it
SMALL, VALUE = 8.5, 12  # points: 11.3 and 16 pixels
MARGIN, LINE = 0.2, 0.21
TOP = MARGIN + 0.35  # below the title
CHIP = 0.66  # the width of the name of a rank

BELOW = "below"  # marks the lines of the text below a drawing

# The left and upper edge, the width and the height.
Box = tuple[float, float, float, float]

# How a shape or a line of matplotlib looks.
Look = dict[str, Any]
THIN: Look = {"linewidth": 0.8}

# What figures are drawn and written with, whatever the reader's settings are.
STYLE: list[str | dict[str, Any]] = [
    "default",
    {"svg.hashsalt": "collectives", "svg.fonttype": "none", "hatch.linewidth": 0.5},
]


P = ParamSpec("P")


def default_style(draw: Callable[P, Canvas | Figure]) -> Callable[P, Figure]:
    """Mark a function that draws: the reader's settings of matplotlib do not change its figure."""

    @functools.wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        import matplotlib.style

        with matplotlib.style.context(STYLE):
            found = draw(*args, **kwargs)
            figure = found.figure if isinstance(found, Canvas) else found
            if figure.get_layout_engine():
                _lay_out(figure)
        return figure

    return draw_in_style


class Canvas:
    """A figure on which things are placed in inches from the top left. `end` gives it its height.

    The title takes the room above TOP.
    """

    def __init__(self, title: str = "", width: float = WIDEST):
        from matplotlib.figure import Figure

        self.width = width
        self.figure = Figure(dpi=100, facecolor=PAGE)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.axis("off")
        if title:
            self.write(MARGIN, MARGIN + 0.1, title, 10, weight="bold", gid="title")

    def end(self, height: float, words: str) -> Canvas:
        """The page is so high. `words` say what it shows to readers who cannot see it."""
        self.figure.set_size_inches(self.width, height)
        self.axes.set(xlim=(0, self.width), ylim=(height, 0))
        self.figure.set_label(words)
        return self

    def paragraph(self, text: str, y: float) -> float:
        """Write a text, as wide as the page, below this height; return where it ends."""
        lines = wrapped(text, self.width - 2 * MARGIN)
        self.lines(MARGIN, y + LINE, lines, label=BELOW)
        return y + LINE * len(lines)

    def end_with(self, legend: str, y: float, words: str) -> Canvas:
        """The page ends with this text, which stands below `y`."""
        return self.end(self.paragraph(legend, y) + LINE / 2 + MARGIN, words)

    def write(
        self, x: float, y: float, text: str, size: float = SMALL, colour: str = DARK, **style
    ) -> None:
        style = {"va": "center_baseline"} | style
        self.axes.text(x, y, text, fontsize=size, color=colour, **style)

    def lines(self, x: float, y: float, lines: Sequence[str], **style) -> None:
        """Lines of small text, the first one centred on `y`."""
        for number, line in enumerate(lines):
            self.write(x, y + number * LINE, line, **style)

    def chip(self, x: float, y: float, rank: int) -> None:
        """The name of a rank on its colour: the key to all other colours."""
        box = x, y - 0.13, CHIP, 0.26
        self.cell(box, f"rank {rank}", colour_of(rank), bold=True, size=9)

    def chips(self, ranks: int) -> None:
        """The names of all ranks, in a row below the title."""
        for rank in range(ranks):
            self.chip(MARGIN + 0.8 * rank, TOP + 0.6 * LINE, rank)

    def key(self, colours: Mapping[str, str]) -> None:
        """What the colours mean, in a row below the title."""
        x = MARGIN
        for name, colour in colours.items():
            self.box((x, TOP + 0.03, 0.16, 0.16), colour)
            self.write(x + 0.22, TOP + 0.11, name)
            x += 0.42 + breadth(name)

    def cell(
        self,
        box: Box,
        text: str,
        colour: str,
        gid: str | None = None,
        bold=False,
        size=SMALL,
        **look,
    ) -> None:
        """A box with a text in its middle, and an edge in a darker form of its colour."""
        self.box(box, colour, gid, **{"edgecolor": edge(colour)} | THIN | look)
        if text:
            x, y, width, height = box
            style = {"ha": "center", "weight": "bold" if bold else "normal"}
            self.write(x + width / 2, y + height / 2, text, size, ink(colour), **style)

    def box(self, box: Box, colour: str, gid: str | None = None, **look: Any) -> None:
        from matplotlib.patches import Rectangle

        x, y, width, height = box
        look = {"facecolor": colour, "gid": gid, "clip_on": False, "linewidth": 0} | look
        self.axes.add_patch(Rectangle((x, y), width, height, **look))

    def frame(self, box: Box, radius: float = 0.08, **look: Any) -> None:
        """A box with round corners."""
        from matplotlib.patches import FancyBboxPatch

        x, y, width, height = box
        plain: Look = {"facecolor": LIGHT, "edgecolor": GREY, "zorder": 0} | THIN
        shape = f"round,pad=0,rounding_size={radius}"
        self.axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, **(plain | look)))

    def arrow(self, points: Sequence[tuple[float, float]], gid: str, **look: Any) -> Patch:
        """An arrow along these points, straight from each to the next.

        With a `connectionstyle` of matplotlib it leads from the first point to the last like that.
        """
        from matplotlib.patches import FancyArrowPatch
        from matplotlib.path import Path

        plain: Look = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "gid": gid}
        if "connectionstyle" in look:
            patch = FancyArrowPatch(points[0], points[-1], **(plain | look))
        else:
            patch = FancyArrowPatch(path=Path(points), **(plain | look))
        self.axes.add_patch(patch)
        return patch


def take_caption(figure: Figure) -> tuple[str, str]:
    """The title of a figure and the text below it, which are taken out of the drawing.

    A page of HTML writes them in its own letters, which do not shrink with the drawing. A figure of
    somebody else may have neither.
    """
    if not figure.axes:
        return "", ""
    axes = figure.axes[0]
    title = next((text for text in axes.texts if text.get_gid() == "title"), axes.title)
    below = [text for text in (*axes.texts, *figure.texts) if text.get_label() == BELOW]
    words = title.get_text(), " ".join(text.get_text() for text in below)
    if title is axes.title:  # a plot
        for text in (title, *below):
            text.set_text("")
        if any(words):
            _lay_out(figure)
        return words
    top, (bottom, _) = TOP - MARGIN - 0.05, axes.get_ylim()
    if below:
        bottom = min(text.get_position()[1] for text in below) - LINE / 2 + MARGIN / 2
    for text in (title, *below):
        text.remove()
    axes.set_ylim(bottom, top)
    figure.set_figheight(bottom - top)
    return words


def _lay_out(figure: Figure) -> None:
    """Fix the places that matplotlib computes: they would change each time that it is saved."""
    figure.set_layout_engine("constrained")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


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
