"""Pictures of where every number went, drawn from what the ranks held before a call and after it.

    figure = draw(before, after, op="SUM", title="all_reduce")
    save(figure, "all_reduce.svg")

Each rank is a row and each element a cell, in the colour of the rank that its value came from. An
arrow with the call's name leads from before to after.
`text` draws the same for a terminal, and `describe` puts it into sentences.
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

try:
    import matplotlib.style
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"pictures need {missing.name}, which is not here: "
        "pip install 'collectives[pictures]' brings it"
    ) from missing

from collectives.pictures.colours import DARK
from collectives.pictures.drawn_cell import draw_cell, draw_label, fill
from collectives.pictures.layout import (
    ARROW_SIZE,
    CELL,
    Band,
    Block,
    Shown,
    has_labels,
    layout,
)
from collectives.pictures.origin import Cell, trace
from collectives.pictures.page import LINE, MARGIN, Canvas, breadth, wrapped
from collectives.pictures.text import describe, heading, sentences, text

__all__ = ["describe", "draw", "draw_calls", "save", "shown", "svg", "text"]

_STYLE = [
    "default",
    {"svg.hashsalt": "collectives", "svg.fonttype": "none", "hatch.linewidth": 0.5},
]
# On a page, a wide picture shrinks to the page's width.
_ATTRIBUTES = 'font-family="DejaVu Sans, Verdana, sans-serif" style="max-width:100%;height:auto"'

# The samples in the legend that need one, and what they mean.
_SAMPLES = {
    "received": "from another rank",
    "reduced": "made from these ranks' values",
    "undefined": "no rank's values give this",
    "unknown": "cannot be traced to one rank",
}


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
    return draw_calls([shown(before, after, op=op, root=root, title=title, in_place=in_place)])


def shown(
    before: list,
    after: list,
    *,
    op=None,
    root: int | None = None,
    title: str = "",
    in_place: bool | None = None,
    caption: str = "",
    notes: Sequence[str] = (),
) -> Shown:
    """One call for `draw_calls`. `caption` stands above it, and `notes` below the picture."""
    origins = trace(before, after, op=op, root=root, in_place=in_place)
    return Shown(origins, title, caption, tuple(notes))


def draw_calls(calls: Sequence[Shown]) -> Figure:
    """Draw several calls of the same ranks in one picture.

    The cells of the first one have the gids that `draw` gives them; those of the second one begin
    with `call2/`.
    """
    with matplotlib.style.context(_STYLE):
        summary = next((one for one in calls if one.origins.summary), None)
        figure = _summarised(summary) if summary else _drawn(calls)
    # svg makes this the alternative text.
    figure.set_label(" ".join(_in_words(one) for one in calls))
    return figure


def _in_words(one: Shown) -> str:
    title = one.title or "Where every value came from"
    caption = f"{one.caption.capitalize()}: " if one.caption else ""
    return " ".join([f"{caption}{title}. {sentences(one.origins)}", *one.notes])


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
        r" font-family: [^;\"]*;?",
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


def _drawn(calls: Sequence[Shown]) -> Figure:
    width, bands = layout(calls, MARGIN)
    below = bands[-1].tops[-1] + 0.1
    page = max(width, 3.6)
    notes = dict.fromkeys(note for one in calls for note in (*one.origins.notes, *one.notes))
    lines = [line for note in notes for line in wrapped(note, page - MARGIN)]
    legend = _legend(calls, page - MARGIN)
    height = below + LINE * (legend[-1][1] + 1 + len(lines)) + MARGIN / 2
    canvas = Canvas(page + MARGIN, height)
    for band in bands:
        _chips(canvas, band)
        for block in band.blocks:
            number = next(at for at, one in enumerate(calls, 1) if one is block.shown)
            _block(canvas, block, band.tops, f"call{number}/" if number > 1 else "")
    for x, line, state, words in legend:
        y = below + line * LINE
        if state:
            ranks = (0, 1) if state == "reduced" else ()
            fill(canvas, MARGIN + x, y - 0.08, 0.26, 0.16, Cell("", 0, state, ranks))
        canvas.write(MARGIN + x + (0.34 if state else 0), y, words)
    canvas.lines(MARGIN, below + LINE * (legend[-1][1] + 1), lines)
    return canvas.figure


def _chips(canvas: Canvas, band: Band) -> None:
    roots = {block.shown.origins.root for block in band.blocks}
    for rank, y in enumerate(band.tops[:-1]):
        canvas.chip(MARGIN, y + CELL / 2, rank)
        if roots == {rank}:
            canvas.write(MARGIN + 0.33, y + CELL / 2 + 0.22, "root", ha="center", weight="bold")


def _block(canvas: Canvas, block: Block, tops: list[float], prefix: str) -> None:
    if block.shown.caption:
        canvas.write(block.left, tops[0] - 1.7 * LINE, block.shown.caption, 9, weight="bold")
    origins = block.shown.origins
    for name, rows in {"before": origins.before, "after": origins.after}.items():
        left = block.lefts[name]
        canvas.write(left, tops[0] - 0.6 * LINE, name)
        for rank, row in enumerate(rows):
            top = tops[rank]
            if not row:
                text = "no buffer" if row is None else "empty"
                canvas.write(left, top + CELL / 2, text, style="italic")
            for number, (cell, (x, y)) in enumerate(
                zip(row or (), block.places[name][rank], strict=True)
            ):
                gid = f"{prefix}{name}/r{rank}/e{number}"
                draw_cell(canvas, left + x, top + y, block.cell, CELL, cell, gid)
                if cell.state == "reduced" and has_labels(block.shown):
                    draw_label(canvas, left + x + block.cell / 2, top + y + CELL + 0.08, cell.label)
    _arrow(canvas, block, (tops[0] + tops[-1] - 0.11) / 2, prefix)


def _arrow(canvas: Canvas, block: Block, y: float, prefix: str) -> None:
    """From before to after, with the name of the call above it."""
    begin = block.left + block.spans["before"] + 0.12
    end = block.lefts["after"] - 0.12
    look = {"arrowstyle": "-|>", "mutation_scale": 13, "linewidth": 1.6, "color": DARK}
    canvas.axes.add_patch(
        FancyArrowPatch((begin, y), (end, y), shrinkA=0, shrinkB=0, gid=f"{prefix}arrow", **look)
    )
    lines = block.shown.arrow
    for number, line in enumerate(lines):
        above = y - 0.12 - 0.17 * (len(lines) - 1 - number)
        canvas.write((begin + end) / 2, above, line, ARROW_SIZE, ha="center", weight="bold")


def _legend(calls: Sequence[Shown], width: float) -> list[tuple[float, int, str, str]]:
    """(x, line, state or "", words) of each entry; in one line if the page is wide enough."""
    states = {state for one in calls for state in one.origins.states()}
    entries = [("", "Colour: the rank that a value came from")]
    entries += [(state, words) for state, words in _SAMPLES.items() if state in states]
    found, x, line = [], 0.0, 0
    for state, words in entries:
        needed = breadth(words) + (0.34 if state else 0)
        if x and x + needed > width:
            x, line = 0.0, line + 1
        found.append((x, line, state, words))
        x += needed + 0.2
    return found


def _summarised(one: Shown) -> Figure:
    page = 8.0
    lines = [
        part
        for line in (*one.origins.notes, *one.origins.summary)
        for part in wrapped(line, page - 2 * MARGIN)
    ]
    head = heading(one.title, one.origins)
    top = MARGIN + 1.5 * LINE * bool(head)
    canvas = Canvas(page, top + LINE * len(lines) + MARGIN)
    canvas.write(MARGIN, MARGIN + 0.5 * LINE, head, 12, weight="bold")
    canvas.lines(MARGIN, top + LINE / 2, lines)
    return canvas.figure
