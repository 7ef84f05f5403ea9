"""How one cell looks: its colour names the rank that its value came from, its pattern the state.

Letters repeat both.
"""

from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

from collectives.pictures.colours import DARK, LIGHT, PALETTE, ink, tint
from collectives.pictures.origin import Cell

_PAGE, _NO_RANK, _EDGE = "#fafafa", "#e4e4e4", "#555555"

# Edges and patterns by state. A "reduced" cell also has stripes.
_LOOKS = {
    "own": {"edgecolor": _EDGE, "linewidth": 0.8},
    "untouched": {"edgecolor": DARK, "linewidth": 2.2, "linestyle": (0, (1.5, 1.5))},
    "overwritten": {"edgecolor": _EDGE, "linewidth": 0.8},
    "received": {"edgecolor": DARK, "linewidth": 2.2},
    "reduced": {"edgecolor": _EDGE, "linewidth": 0.8},
    "undefined": {"edgecolor": "#777777", "linewidth": 0.8, "hatch": "////"},
    "unknown": {"edgecolor": "#777777", "linewidth": 0.8, "hatch": "|||"},
}


class Canvas:
    """A figure on which things are placed in inches from the top left.

    Its background is light, so that it can be read on a dark page.
    """

    def __init__(self, width: float, height: float):
        self.figure = Figure(figsize=(width, height), dpi=100, facecolor=_PAGE)
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        self.axes.axis("off")

    def write(
        self, x: float, y: float, text: str, size: float, colour: str = DARK, **style
    ) -> None:
        self.axes.text(x, y, text, fontsize=size, color=colour, va="center_baseline", **style)

    def chip(self, x: float, y: float, rank: int) -> None:
        """The name of a rank on its colour: the key to all cells."""
        self._box(x, y - 0.13, 0.62, 0.26, PALETTE[rank])
        self.write(x + 0.31, y, f"rank {rank}", 9, ink(PALETTE[rank]), ha="center", weight="bold")

    def cell(self, x: float, y: float, width: float, height: float, cell: Cell, gid: str) -> None:
        """A cell with its state, its value, and the ranks that the value came from."""
        ground = self.fill(x, y, width, height, cell, gid)
        if cell.state in ("reduced", "undefined", "unknown"):  # text cannot be read on a pattern
            self._box(x + 0.05 * width, y + 0.15 * height, 0.9 * width, 0.7 * height, ground)
        style = {"colour": ink(ground), "ha": "center"}
        self.write(x + width / 2, y + 0.26 * height, cell.state, 6.5, **style)
        self.write(x + width / 2, y + 0.5 * height, cell.text, 11, weight="bold", **style)
        self.write(x + width / 2, y + 0.74 * height, cell.label, 7.5, **style)

    def fill(
        self, x: float, y: float, width: float, height: float, cell: Cell, gid: str | None = None
    ) -> str:
        """The background of a cell. Returns the colour behind its text."""
        ground = _ground(cell)
        self._box(x, y, width, height, ground, gid, **_LOOKS[cell.state])
        if cell.state == "overwritten":  # a corner is cut off
            corner = min(0.14, 0.6 * height)
            shape = [(x + width - corner, y), (x + width, y), (x + width, y + corner)]
            self.axes.add_patch(
                Polygon(shape, facecolor=_PAGE, edgecolor=_EDGE, linewidth=0.8, clip_on=False)
            )
        elif cell.state == "reduced":
            self._stripes(x, y, width, height, cell, gid)
        return ground

    def _stripes(
        self, x: float, y: float, width: float, height: float, cell: Cell, gid: str | None
    ) -> None:
        """A stripe for each rank that contributed, a pale one for each that perhaps did."""
        ranks = sorted(cell.ranks + cell.perhaps)
        step = width / len(ranks)
        for number, rank in enumerate(ranks):
            colour = PALETTE[rank] if rank in cell.ranks else tint(PALETTE[rank])
            self._box(x + number * step, y, step, height, colour, gid and f"{gid}/r{rank}")

    def _box(
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


def _ground(cell: Cell) -> str:
    if cell.state in ("reduced", "undefined"):
        return LIGHT
    return PALETTE[cell.ranks[0]] if cell.ranks else _NO_RANK
