"""Pictures of where every number went, drawn from what the ranks held before a call and after it.

    figure = draw(before, after, op="SUM", title="all_reduce")
    save(figure, "all_reduce.svg")

Each rank is a row and each element a cell, in the colour of the rank that its value came from.
`text` draws the same for a terminal, and `describe` puts it into sentences.
"""

import io
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import quoteattr

try:
    import matplotlib.style
    from matplotlib.figure import Figure
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"pictures need {missing.name}, which is not here: "
        "pip install 'collectives[pictures]' brings it"
    ) from missing

from collectives.pictures.drawn_cell import Canvas
from collectives.pictures.layout import CELL, LINE, MARGIN, Layout, layout
from collectives.pictures.origin import STATES, Cell, Origins, Row, trace
from collectives.pictures.text import describe, heading, sentences, text

__all__ = ["describe", "draw", "save", "svg", "text"]

_STYLE = [
    "default",
    {"svg.hashsalt": "collectives", "svg.fonttype": "none", "hatch.linewidth": 0.5},
]
# On a page, a wide picture shrinks to the page's width.
_ATTRIBUTES = 'font-family="DejaVu Sans, Verdana, sans-serif" style="max-width:100%;height:auto"'


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

    `before` and `after` have one entry for each rank: a tensor of any shape and dtype, a list of
    tensors, or None if the rank has no such buffer. Origins are found by comparing values, so each
    value should occur only once, as those of `10 ** rank` do. `op` names the reduction (`"SUM"` or
    `ReduceOp.SUM`), `root` the rank to mark. `in_place` says whether `after` has the same buffers
    as `before`; None means yes if every rank has one tensor before and after, of the same shape
    (`all_to_all_single` needs False).

    Cells have the gid `before/r<rank>/e<index>` or `after/...`. More than 8 ranks, or more than 32
    elements in a rank, are summarised in words, and the picture says so. Raises ValueError if
    `before` and `after` differ in length, and for an unknown `op` or `root`.
    """
    origins = trace(before, after, op=op, root=root, in_place=in_place)
    with matplotlib.style.context(_STYLE):
        figure = _summarised(origins, title) if origins.summary else _drawn(origins, title)
    # svg makes this the alternative text.
    figure.set_label(f"{title or 'Where every value came from'}. {sentences(origins)}")
    return figure


def svg(figure: Figure) -> bytes:
    """The figure as SVG, with text as text and a description for screen readers.

    The same figure gives the same bytes every time.
    """
    buffer = io.StringIO()
    with matplotlib.style.context(_STYLE):
        figure.savefig(buffer, format="svg")
    code = buffer.getvalue()
    code = code[code.index("<svg") :]  # so that an HTML page can contain it
    # Remove the date in the metadata, the font named in each text, and the like.
    for superfluous in (
        r"<!--.*?-->",
        r"<metadata>.*?</metadata>",
        r" font-family: .*?;",
        r" transform=\"rotate\(-0 .*?\)\"",
    ):
        code = re.sub(superfluous, "", code, flags=re.DOTALL)
    code = re.sub(r"\s*\n\s*", "\n", code)
    # These groups are half of the code.
    code = re.sub(r'<g id="(?:text|patch)_\d+">\n(.*?)\n</g>', r"\1", code, flags=re.DOTALL)
    attributes = f'{_ATTRIBUTES} role="img" aria-label={quoteattr(figure.get_label())}'
    return code.replace(">", f" {attributes}>", 1).encode()


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure to a file whose name ends in .svg or .png."""
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"{path}: a picture is written as .svg or .png: let the name end so.")
    if path.suffix == ".svg":
        path.write_bytes(svg(figure))
    else:
        metadata = {"Software": None, "Description": figure.get_label()}
        figure.savefig(path, dpi=200, metadata=metadata)


def _drawn(origins: Origins, title: str) -> Figure:
    head, states = heading(title, origins), origins.states()
    place = layout(origins, has_heading=bool(head))
    below = place.tops[-1]
    notes = _wrapped(origins.notes, place.page)
    canvas = Canvas(place.page, below + LINE * (len(states) + len(notes)) + MARGIN)
    canvas.write(MARGIN, MARGIN + 0.5 * LINE, head, 12, weight="bold")
    for rank, y in enumerate(place.tops[:-1]):
        canvas.chip(MARGIN, y + CELL / 2, rank)
        if rank == origins.root:
            canvas.write(MARGIN + 0.31, y + CELL / 2 + LINE, "root", 9, ha="center", weight="bold")
    _panel(canvas, place, "before", origins.before)
    _panel(canvas, place, "after", origins.after)
    _legend(canvas, below, states)
    _lines(canvas, below + LINE * len(states), notes)
    return canvas.figure


def _panel(canvas: Canvas, place: Layout, name: str, rows: tuple[Row, ...]) -> None:
    left = place.lefts[name]
    canvas.write(left, place.tops[0] - 0.6 * LINE, name, 10)
    for rank, row in enumerate(rows):
        top = place.tops[rank]
        if not row:
            text = "no buffer" if row is None else "empty"
            canvas.write(left, top + CELL / 2, text, 8, style="italic")
        for number, (cell, (x, y)) in enumerate(
            zip(row or (), place.places[name][rank], strict=True)
        ):
            gid = f"{name}/r{rank}/e{number}"
            canvas.cell(left + x, top + y, place.cell, CELL, cell, gid)


def _legend(canvas: Canvas, y: float, states: list[str]) -> None:
    """A sample of each state that occurs, and what it means."""
    for number, state in enumerate(states):
        ranks = (0, 1) if state == "reduced" else ()
        top = y + number * LINE
        canvas.fill(MARGIN, top, 0.3, 0.18, Cell("", 0, state, ranks))
        canvas.write(MARGIN + 0.42, top + 0.09, f"{state}: {STATES[state][1]}", 8.5)


def _summarised(origins: Origins, title: str) -> Figure:
    page = 9.0
    lines = _wrapped([*origins.notes, *origins.summary], page)
    top = MARGIN + 1.5 * LINE * bool(heading(title, origins))
    canvas = Canvas(page, top + LINE * len(lines) + MARGIN)
    canvas.write(MARGIN, MARGIN + 0.5 * LINE, heading(title, origins), 12, weight="bold")
    _lines(canvas, top, lines)
    return canvas.figure


def _wrapped(lines: Iterable[str], page: float) -> list[str]:
    return [
        part for line in lines for part in textwrap.wrap(line, int((page - 2 * MARGIN) / 0.075))
    ]


def _lines(canvas: Canvas, y: float, lines: list[str]) -> None:
    for number, line in enumerate(lines):
        canvas.write(MARGIN, y + (number + 0.35) * LINE, line, 8.5)
