"""Pictures of where every number went, drawn from what the ranks held before a call and after it.

    figure = draw(before, after, op="SUM", title="all_reduce")
    save(figure, "all_reduce.svg")

Each rank is a row and each element a cell, in the colour of the rank that its value came from. `text` draws the same for a
terminal, `describe` says it in sentences.
"""

import io
import re
import textwrap
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import quoteattr

try:
    import matplotlib.style
    from matplotlib.figure import Figure
except ModuleNotFoundError as missing:
    advice = f"pictures need {missing.name}, which is not here: pip install 'collectives[pictures]' brings it"
    raise ModuleNotFoundError(advice) from missing

from collectives.pictures.drawn_cell import Sheet
from collectives.pictures.origin import STATES, Cell, Origins, Row, trace
from collectives.pictures.text import describe, heading, text, words

__all__ = ["describe", "draw", "save", "svg", "text"]

# Lengths are in inches.
PER_LINE = 8  # cells; a rank that has more takes further lines
MARGIN, LABEL, BETWEEN, PIECE = 0.25, 1.2, 0.45, 0.1
CELL, ROW, LINE = 0.68, 0.8, 0.26
NARROWEST = 6.0

_STYLE = [
    "default",
    {"svg.hashsalt": "collectives", "svg.fonttype": "none", "hatch.linewidth": 0.5},
]
# A wide picture shrinks to the width of its page.
_SHOWN = 'font-family="DejaVu Sans, Verdana, sans-serif" style="max-width:100%;height:auto"'


def draw(
    before: list,
    after: list,
    *,
    op=None,
    root: int | None = None,
    title: str = "",
    in_place: bool | None = None,
) -> Figure:
    """Draw what every rank held before a call and after it, and where each value came from.

    `before` and `after` have one entry for each rank: a tensor of any shape and dtype, a list of tensors, or None where the rank
    has no such buffer. Values are compared, and nothing is assumed about the call: so they should occur once, as those of
    `10 ** rank` do. `op` names the reduction (`"SUM"` or `ReduceOp.SUM`), `root` the rank to mark. `in_place` tells whether the
    buffers of `after` are those of `before`; None: yes, if each rank has one tensor of one shape, before and after
    (`all_to_all_single` needs False).

    Cells have the gid `before/r<rank>/e<index>` or `after/...`. More than 8 ranks, or than 32 elements in a rank, are summarised in
    words, and the picture says so. Raises ValueError if the number of ranks differs, or for an unknown `op` or `root`.
    """
    origins = trace(before, after, op=op, root=root, in_place=in_place)
    with matplotlib.style.context(_STYLE):
        figure = _summarised(origins, title) if origins.summary else _drawn(origins, title)
    figure.set_label(
        f"{title or 'Where every value came from'}. {words(origins)}"
    )  # the alternative text
    return figure


def svg(figure: Figure) -> bytes:
    """The figure as SVG, with text as text and a description for screen readers: the same bytes every time."""
    buffer = io.StringIO()
    with matplotlib.style.context(_STYLE):
        figure.savefig(buffer, format="svg")
    code = buffer.getvalue()
    code = code[code.index("<svg") :]  # a page may hold it as it is
    # The date among the metadata, fonts named once for each text, and the like.
    for superfluous in (
        r"<!--.*?-->",
        r"<metadata>.*?</metadata>",
        r" font-family: .*?;",
        r" transform=\"rotate\(-0 .*?\)\"",
    ):
        code = re.sub(superfluous, "", code, flags=re.DOTALL)
    code = re.sub(r"\s*\n\s*", "\n", code)
    code = re.sub(
        r'<g id="(?:text|patch)_\d+">\n(.*?)\n</g>', r"\1", code, flags=re.DOTALL
    )  # half of the letters
    return code.replace(
        ">", f' {_SHOWN} role="img" aria-label={quoteattr(figure.get_label())}>', 1
    ).encode()


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure to a file whose name ends in .svg or .png."""
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"{path}: a picture is written as .svg or .png: let the name end so.")
    if path.suffix == ".svg":
        path.write_bytes(svg(figure))
    else:
        figure.savefig(
            path, dpi=200, metadata={"Software": None, "Description": figure.get_label()}
        )


def _drawn(origins: Origins, title: str) -> Figure:
    panels = {"before": origins.before, "after": origins.after}
    width = max(
        [
            CELL,
            *(
                0.112 * len(cell.text) + 0.16
                for rows in panels.values()
                for row in rows
                for cell in row or ()
            ),
        ]
    )
    places = {name: [_places(row, width) for row in rows] for name, rows in panels.items()}
    spans = {
        name: max([0.8, *(x + width for row in rows for x, _ in row)])
        for name, rows in places.items()
    }
    tops = [
        MARGIN + LINE * (2.7 if heading(title, origins) else 1.2)
    ]  # of each rank's row, and of what follows the last
    for rows in zip(*places.values(), strict=True):
        tops.append(tops[-1] + ROW + max([0, *(y for row in rows for _, y in row)]))

    page = 2 * MARGIN + max(NARROWEST, LABEL + sum(spans.values()) + BETWEEN)
    notes = _wrapped(origins.notes, page)
    sheet = Sheet(page, tops[-1] + LINE * (len(origins.states()) + len(notes)) + MARGIN)
    sheet.write(MARGIN, MARGIN + 0.5 * LINE, heading(title, origins), 12, weight="bold")
    for rank, y in enumerate(tops[:-1]):
        sheet.chip(MARGIN, y + CELL / 2, rank)
        if rank == origins.root:
            sheet.write(MARGIN + 0.31, y + CELL / 2 + LINE, "root", 9, ha="center", weight="bold")
    for name, x in zip(
        panels, (MARGIN + LABEL, MARGIN + LABEL + spans["before"] + BETWEEN), strict=True
    ):
        sheet.write(x, tops[0] - 0.6 * LINE, name, 10)
        for rank, row in enumerate(panels[name]):
            _row(sheet, (x, tops[rank]), width, row, places[name][rank], f"{name}/r{rank}")
    _legend(sheet, tops[-1], origins.states())
    _lines(sheet, tops[-1] + LINE * len(origins.states()), notes)
    return sheet.figure


def _places(row: Row, width: float) -> list[tuple[float, float]]:
    """Where the cells of a rank go, from its first: lines end after PER_LINE cells, if they can between two tensors."""
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


def _row(
    sheet: Sheet, corner: tuple[float, float], width: float, row: Row, places: list, gid: str
) -> None:
    left, top = corner
    if not row:
        sheet.write(
            left, top + CELL / 2, "no buffer" if row is None else "empty", 8, style="italic"
        )
    for number, (cell, (x, y)) in enumerate(zip(row or (), places, strict=True)):
        sheet.cell(left + x, top + y, width, CELL, cell, f"{gid}/e{number}")


def _legend(sheet: Sheet, y: float, states: list[str]) -> None:
    """A sample of each state that occurs, and what it means."""
    for number, state in enumerate(states):
        ranks = (0, 1) if state == "reduced" else ()
        top = y + number * LINE
        sheet.fill(MARGIN, top, 0.3, 0.18, Cell("", 0, state, ranks))
        sheet.write(MARGIN + 0.42, top + 0.09, f"{state}: {STATES[state][1]}", 8.5)


def _summarised(origins: Origins, title: str) -> Figure:
    page = 9.0
    lines = _wrapped([*origins.notes, *origins.summary], page)
    top = MARGIN + 1.5 * LINE * bool(heading(title, origins))
    sheet = Sheet(page, top + LINE * len(lines) + MARGIN)
    sheet.write(MARGIN, MARGIN + 0.5 * LINE, heading(title, origins), 12, weight="bold")
    _lines(sheet, top, lines)
    return sheet.figure


def _wrapped(lines: Iterable[str], page: float) -> list[str]:
    return [
        part for line in lines for part in textwrap.wrap(line, int((page - 2 * MARGIN) / 0.075))
    ]


def _lines(sheet: Sheet, y: float, lines: list[str]) -> None:
    for number, line in enumerate(lines):
        sheet.write(MARGIN, y + (number + 0.35) * LINE, line, 8.5)
