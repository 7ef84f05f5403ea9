"""Where everything on a picture of data goes, in inches from the top left.

Each call takes a block: what the ranks held before it, an arrow, what they held after it. Blocks
stand side by side as far as the page is wide, and then below each other, in bands.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from collectives.pictures.origin import Origins, Row
from collectives.pictures.page import LINE, MARGIN, VALUE, WIDEST, breadth, split_name
from collectives.semantics.calls import BY_NAME

LABEL, BETWEEN, PIECE = 0.86, 0.42, 0.1
CELL, ROW = 0.46, 0.57
ARROW_SIZE, SMALLER = 9, 10  # points

# The places of a row's cells, from its corner.
Places = list[tuple[float, float]]


@dataclass(frozen=True)
class CallPanel:
    """One call on a picture: what is known of its values, and its name."""

    origins: Origins
    title: str = ""
    caption: str = ""  # "call 1 of 3"
    notes: tuple[str, ...] = ()
    names: tuple[str, str] = ("before", "after")  # of the buffers, as the program calls them
    absent: tuple[int, ...] = ()  # the ranks that are not in the group

    @property
    def arrow(self) -> list[str]:
        """The lines that stand on the arrow: "reduce", "(SUM, dst=3)"."""
        spec = BY_NAME.get(self.title)
        root = f"{spec.peer if spec and spec.peer else 'root'}={self.origins.root}"
        facts = [self.origins.op, root if self.origins.root is not None else None]
        given = ", ".join(filter(None, facts))
        inside = f"({given})" if given else ""
        letters = 11 if self.caption else 16  # one of several calls has less room
        is_short = len(self.title + inside) <= letters
        parts = [self.title + inside] if is_short else [*split_name(self.title, letters), inside]
        return list(filter(None, parts))


@dataclass(frozen=True)
class Block:
    """The places of one call: of its panels, of the arrow between them, and of its cells."""

    call: CallPanel
    cell: float  # the width of a cell
    size: float  # of its letters, in points
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


def layout(calls: Sequence[CallPanel], top: float) -> tuple[float, list[Band]]:
    """The width of all bands, and the bands, the first of which begins at `top`."""
    bands: list[Band] = []
    rows: list[list[Block]] = []
    for call in calls:
        block = _block(call)
        right = rows[-1][-1].left + rows[-1][-1].width + BETWEEN if rows else WIDEST
        if right + block.width + MARGIN <= WIDEST:
            rows[-1].append(replace(block, left=right))
        else:
            rows.append([replace(block, left=MARGIN + LABEL)])
    for blocks in rows:
        has_caption = any(block.call.caption for block in blocks)
        tops = [top + LINE * (2.1 if has_caption else 1)]
        for rank in range(len(blocks[0].call.origins.before)):
            deepest = [y for block in blocks for y in _depths(block, rank)]
            tops.append(tops[-1] + ROW + max([0, *deepest]))
        bands.append(Band(blocks, tops))
        top = tops[-1] + 0.1
    return max(block.left + block.width for band in bands for block in band.blocks), bands


def _depths(block: Block, rank: int) -> list[float]:
    """How far below the row's first line its lines are, with the labels below them."""
    label = 0.16 if has_labels(block.call) else 0
    return [y + label for rows in block.places.values() for _, y in rows[rank]]


def has_labels(call: CallPanel) -> bool:
    """Whether the ranks stand below the reduced cells: where some member is not among them."""
    ranks = {*range(len(call.origins.before))} - {*call.absent}
    return any(
        cell.state == "reduced" and set(cell.ranks) != ranks
        for row in call.origins.after
        for cell in row or ()
    )


def _block(call: CallPanel) -> Block:
    """A block with as many pieces in a line as the page has room for.

    Cells become narrower, and then their letters smaller, before a line is broken, and lines are
    broken between pieces before they are broken in one: so the same places of all ranks stay below
    each other.
    """
    panels = {"before": call.origins.before, "after": call.origins.after}
    cells = [cell for rows in panels.values() for row in rows for cell in row or ()]
    wide = max([0.5, *(_cell_width(cell.text) for cell in cells)])
    narrow = max([0.34, *(_cell_width(cell.text, spare=0.08) for cell in cells)])
    small = max([0.28, *(_cell_width(cell.text, 0.06, SMALLER) for cell in cells)])
    pitch = CELL + (0.16 if has_labels(call) else 0)
    gap = 0.3 + max([0.7, *(1.17 * breadth(line, ARROW_SIZE) for line in call.arrow)])
    least = {
        side: max(0.5 if all(rows) else 0.66, breadth(name))  # "no buffer"
        for (side, rows), name in zip(panels.items(), call.names, strict=True)
    }
    if call.absent:
        least["before"] = max(least["before"], breadth("not in the group"))
    pieces = 1 + max((cell.piece for cell in cells), default=0)
    longest = max((_longest_line(row) for rows in panels.values() for row in rows), default=1)
    tries = [
        (look, -(-pieces // lines), longest)
        for lines in range(1, pieces + 1)
        for look in ((wide, VALUE), (narrow, VALUE), (small, SMALLER))
    ]
    tries += [((wide, VALUE), 1, -(-longest // parts)) for parts in range(2, longest + 1)]
    for look, per_line, fold in tries:
        width = look[0]
        places = {
            name: [_places(row, width, pitch, per_line, fold) for row in rows]
            for name, rows in panels.items()
        }
        spans = {
            name: max([least[name], *(x + width for row in rows for x, _ in row)])
            for name, rows in places.items()
        }
        if MARGIN + LABEL + sum(spans.values()) + gap + MARGIN <= WIDEST:
            break
    return Block(call, *look, spans, gap, places)


def _longest_line(row: Row) -> int:
    return max(Counter((cell.piece, cell.line) for cell in row or ()).values(), default=1)


def _places(row: Row, width: float, pitch: float, per_line: int, fold: int) -> Places:
    """Pieces side by side, `per_line` of them; in each, the lines of a matrix below each other.

    A line of a piece ends after `fold` cells at most.
    """
    places, left, top, right, bottom, band = [], 0.0, 0.0, 0.0, 0.0, 0
    for piece, group in groupby(row or (), lambda cell: cell.piece):
        if piece // per_line != band:
            left, top, band = 0.0, bottom, piece // per_line
        y = top
        for _, line in groupby(group, lambda cell: cell.line):
            for at, _ in enumerate(line):
                places.append((left + at % fold * width, y + at // fold * pitch))
            y = places[-1][1] + pitch
            right = max(x + width for x, _ in places[-at - 1 :])
            bottom = max(bottom, y)
        left = right + PIECE
    return places


def _cell_width(text: str, spare: float = 0.17, size: float = VALUE) -> float:
    """The width of a cell in which this value has room, and some to spare."""
    return 0.125 * size / VALUE * len(text) + spare
