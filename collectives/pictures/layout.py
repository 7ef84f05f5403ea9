"""Where everything on a picture goes, in inches from the top left."""

from dataclasses import dataclass
from itertools import groupby

from collectives.pictures.origin import Origins, Row

PER_LINE = 8  # cells; a rank that has more takes further lines
MARGIN, LABEL, BETWEEN, PIECE = 0.25, 1.2, 0.45, 0.1
CELL, ROW, LINE = 0.68, 0.8, 0.26
NARROWEST = 6.0

# The places of a row's cells, from its corner.
Places = list[tuple[float, float]]


@dataclass(frozen=True)
class Layout:
    """The places of the panels "before" and "after"."""

    page: float  # the width of the page
    cell: float  # the width of a cell
    lefts: dict[str, float]  # of the panels
    tops: list[float]  # of each rank's row, then of what follows the last
    places: dict[str, list[Places]]  # by panel and rank


def layout(origins: Origins, has_heading: bool) -> Layout:
    panels = {"before": origins.before, "after": origins.after}
    cells = [cell for rows in panels.values() for row in rows for cell in row or ()]
    width = max([CELL, *(0.112 * len(cell.text) + 0.16 for cell in cells)])
    places = {name: [_places(row, width) for row in rows] for name, rows in panels.items()}
    spans = {
        name: max([0.8, *(x + width for row in rows for x, _ in row)])
        for name, rows in places.items()
    }
    tops = [MARGIN + LINE * (2.7 if has_heading else 1.2)]
    for rows in zip(*places.values(), strict=True):
        tops.append(tops[-1] + ROW + max([0, *(y for row in rows for _, y in row)]))
    return Layout(
        page=2 * MARGIN + max(NARROWEST, LABEL + sum(spans.values()) + BETWEEN),
        cell=width,
        lefts={"before": MARGIN + LABEL, "after": MARGIN + LABEL + spans["before"] + BETWEEN},
        tops=tops,
        places=places,
    )


def _places(row: Row, width: float) -> Places:
    """A line ends after PER_LINE cells at most, and if possible between two tensors."""
    places, x, y, column = [], 0.0, 0.0, 0
    for _, cells in groupby(row or (), lambda cell: cell.piece):
        cells = list(cells)
        if column and column + len(cells) > PER_LINE:
            x, y, column = 0.0, y + CELL, 0
        for _ in cells:
            if column == PER_LINE:
                x, y, column = 0.0, y + CELL, 0
            places.append((x, y))
            x, column = x + width, column + 1
        x += PIECE
    return places
