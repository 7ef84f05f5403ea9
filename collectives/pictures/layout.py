"""Where everything on a picture of data goes, in inches from the top left.

Each call takes a block: what the ranks held before it, an arrow, what they held after it. Blocks
stand side by side as far as the page is wide, and then below each other, in bands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from collectives.pictures.drawn_cell import cell_width
from collectives.pictures.origin import Origins, Row
from collectives.pictures.page import LINE, MARGIN, WIDEST, breadth, split_name
from collectives.spec.calls import BY_NAME

LABEL, BETWEEN, PIECE = 0.86, 0.42, 0.1
CELL, ROW = 0.46, 0.57
ARROW_SIZE = 9  # points

# The places of a row's cells, from its corner.
Places = list[tuple[float, float]]


@dataclass(frozen=True)
class Shown:
    """One call on a picture: what is known of its values, and its name."""

    origins: Origins
    title: str = ""
    caption: str = ""  # "call 1 of 3"
    notes: tuple[str, ...] = ()

    @property
    def arrow(self) -> list[str]:
        """The lines that stand on the arrow: "reduce", "(SUM, dst=3)"."""
        spec = BY_NAME.get(self.title)
        root = f"{spec.peer if spec and spec.peer else 'root'}={self.origins.root}"
        facts = [self.origins.op, root if self.origins.root is not None else None]
        inside = ", ".join(filter(None, facts))
        whole = self.title + f"({inside})" * bool(inside)
        letters = 11 if self.caption else 16  # one of several calls has less room
        if len(whole) <= letters:
            return [whole] * bool(whole)
        return split_name(self.title, letters) + [f"({inside})"] * bool(inside)


@dataclass(frozen=True)
class Block:
    """The places of one call: of its panels, of the arrow between them, and of its cells."""

    shown: Shown
    cell: float  # the width of a cell
    spans: dict[str, float]  # the widths of the panels
    gap: float  # the length of the arrow, with some room
    places: dict[str, list[Places]]  # by panel and rank
    left: float = 0.0

    @property
    def lefts(self) -> dict[str, float]:
        return {"before": self.left, "after": self.left + self.spans["before"] + self.gap}

    @property
    def width(self) -> float:
        return sum(self.spans.values()) + self.gap


@dataclass(frozen=True)
class Band:
    """Blocks side by side. `tops`: of each rank's row, then of what follows the last."""

    blocks: list[Block] = field(default_factory=list)
    tops: list[float] = field(default_factory=list)


def layout(shown: Sequence[Shown], top: float) -> tuple[float, list[Band]]:
    """The width of all bands, and the bands, the first of which begins at `top`."""
    bands, rows = [], []
    for one in shown:
        block = _block(one)
        right = rows[-1][-1].left + rows[-1][-1].width + BETWEEN if rows else WIDEST
        if right + block.width + MARGIN <= WIDEST:
            rows[-1].append(_at(block, right))
        else:
            rows.append([_at(block, MARGIN + LABEL)])
    for blocks in rows:
        has_caption = any(block.shown.caption for block in blocks)
        tops = [top + LINE * (2.1 if has_caption else 1)]
        for rank in range(len(blocks[0].shown.origins.before)):
            deepest = [y for block in blocks for y in _depths(block, rank)]
            tops.append(tops[-1] + ROW + max([0, *deepest]))
        bands.append(Band(blocks, tops))
        top = tops[-1] + 0.1
    return max(block.left + block.width for band in bands for block in band.blocks), bands


def _at(block: Block, left: float) -> Block:
    return Block(block.shown, block.cell, block.spans, block.gap, block.places, left)


def _depths(block: Block, rank: int) -> list[float]:
    """How far below the row's first line its lines are, with the labels below them."""
    label = 0.16 if has_labels(block.shown) else 0
    return [y + label for rows in block.places.values() for _, y in rows[rank]]


def has_labels(shown: Shown) -> bool:
    """Whether the ranks stand below the reduced cells: where some rank is not among them."""
    ranks = range(len(shown.origins.before))
    return any(
        cell.state == "reduced" and not cell.perhaps and set(cell.ranks) != set(ranks)
        for row in shown.origins.after
        for cell in row or ()
    )


def _block(shown: Shown) -> Block:
    """A block with as many cells in a line as the page has room for."""
    panels = {"before": shown.origins.before, "after": shown.origins.after}
    cells = [cell for rows in panels.values() for row in rows for cell in row or ()]
    width = max([0.5, *(cell_width(cell.text) for cell in cells)])
    pitch = CELL + (0.16 if has_labels(shown) else 0)
    gap = 0.3 + max([0.7, *(1.17 * breadth(line, ARROW_SIZE) for line in shown.arrow)])
    least = {name: 0.5 if all(rows) else 0.66 for name, rows in panels.items()}  # "no buffer"
    for per_line in (8, 6, 4, 3, 2, 1):
        places = {
            name: [_places(row, width, pitch, per_line) for row in rows]
            for name, rows in panels.items()
        }
        spans = {
            name: max([least[name], *(x + width for row in rows for x, _ in row)])
            for name, rows in places.items()
        }
        if MARGIN + LABEL + sum(spans.values()) + gap + MARGIN <= WIDEST:
            break
    return Block(shown, width, spans, gap, places)


def _places(row: Row, width: float, pitch: float, per_line: int) -> Places:
    """A line ends after so many cells at most, and if possible between two tensors."""
    places, x, y, column = [], 0.0, 0.0, 0
    for _, cells in groupby(row or (), lambda cell: cell.piece):
        cells = list(cells)
        if column and column + len(cells) > per_line:
            x, y, column = 0.0, y + pitch, 0
        for _ in cells:
            if column == per_line:
                x, y, column = 0.0, y + pitch, 0
            places.append((x, y))
            x, column = x + width, column + 1
        x += PIECE
    return places
