"""Pictures of where every number went, drawn from what the ranks held before a call and after it.

Each rank is a row and each element a cell, in the colour of the rank that its value came from. An
arrow with the call's name leads from before to after. A value from another rank has a thick edge. A
value of several ranks has a stripe for each of them.
"""

import hashlib
import importlib.util
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from collectives.pictures.colours import DARK, LIGHT, WRONG, colour_of, ink, tint
from collectives.pictures.data_panels import (
    ARROW_SIZE,
    CELL,
    Band,
    Block,
    CallPanel,
    has_labels,
    layout,
)
from collectives.pictures.origin import PictureCell
from collectives.pictures.page import (
    CHIP,
    LINE,
    MARGIN,
    STYLE,
    TOP,
    VALUE,
    Box,
    Canvas,
    breadth,
    default_style,
)
from collectives.pictures.text import sentences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# All that draws imports this file. matplotlib itself is imported by the first picture.
if importlib.util.find_spec("matplotlib") is None:
    raise ModuleNotFoundError(
        "pictures need matplotlib, which is not here: "
        "pip install 'torch-collectives[pictures]' brings it"
    )

# On a page, a wide picture shrinks to the page's width.
_ATTRIBUTES = 'font-family="DejaVu Sans, Verdana, sans-serif" style="max-width:100%;height:auto"'

_COLOURS = 32  # of a PNG in a notebook

_NO_RANK, _EDGE = "#dcdcdc", "#555555"
_PLAIN = {"edgecolor": _EDGE, "linewidth": 0.8}

# Edges and patterns by state; all other states look plain.
_LOOKS = {
    "received": {"edgecolor": DARK, "linewidth": 2.2},
    "padding": {"edgecolor": "#777777", "linewidth": 0.8, "hatch": "////"},
    "undefined": {"edgecolor": WRONG, "linewidth": 1.6, "hatch": "////"},
    "unknown": {"edgecolor": "#777777", "linewidth": 0.8, "hatch": "|||"},
}

_COLOUR = "Colour: the rank that a value came from."
# What the looks of a cell mean, by its state.
_MEANINGS = {
    "received": "Thick edge: it came from another rank.",
    "reduced": "Stripes: it is made from the values of these ranks.",
    "padding": "Slanting lines: padding.",
    "undefined": "Red edge: no rank's values give this.",
    "unknown": "Upright lines: several ranks or sums give this value.",
}


@default_style
def draw(calls: Sequence[CallPanel], roles: Sequence[str] = (), *, title: str = "") -> Canvas:
    """Draw calls of the same ranks in one picture. Without a title, the names of the calls are it.

    Cells have the gid `before/r<rank>/e<index>` or `after/...`; those of the second call begin with
    `call2/`.
    """
    title = title or _title(calls)
    width, bands = layout(calls, TOP)
    page = max(width, 3.6, MARGIN + breadth(title, 11))
    notes = dict.fromkeys(note for call in calls for note in (*call.origins.notes, *call.notes))
    canvas = Canvas(title, page + MARGIN)
    for band in bands:
        _chips(canvas, band, roles)
        for block in band.blocks:
            number = next(at for at, call in enumerate(calls, 1) if call is block.call)
            _block(canvas, block, band.tops, f"call{number}/" if number > 1 else "")
    text = " ".join([*legend(calls), *notes])
    return canvas.end_with(text, bands[-1].tops[-1], " ".join(map(in_words, calls)))


def _title(calls: Sequence[CallPanel]) -> str:
    names = " and ".join(dict.fromkeys(call.title for call in calls))
    return names and f"{names}: whose values each rank has before and after"


def in_words(call: CallPanel) -> str:
    """What the picture of a call shows, for readers who cannot see it."""
    title = call.title or "Where every value came from"
    caption = f"{call.caption.capitalize()}: " if call.caption else ""
    return " ".join([f"{caption}{title}. {sentences(call.origins)}", *call.notes])


def svg(figure: "Figure") -> bytes:
    """The figure as SVG, with text as text and a description for screen readers.

    The same figure gives the same bytes every time, and on every processor.
    """
    buffer = io.StringIO()
    import matplotlib.style

    with matplotlib.style.context(STYLE):
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
    label = str(figure.get_label())
    code = _numbered(_rounded(code), label)
    attributes = f'{_ATTRIBUTES} role="img" aria-label={quoteattr(label)}'
    return code.replace(">", f" {attributes}>", 1).encode()


def png(figure: "Figure") -> bytes:
    """The figure as a small PNG of a few colours, as wide as the SVG is on a screen."""
    from PIL import Image  # matplotlib brings it

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=96)
    image = Image.open(drawn).convert("RGB")
    # Those that cover most, unchanged: a palette that PIL chooses would mix them.
    counted: list[Any] = sorted(image.getcolors(image.width * image.height) or (), reverse=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in counted[:_COLOURS] for part in colour])
    image = image.quantize(palette=palette, dither=Image.Dither.NONE)
    image.save(small, format="png", optimize=True)
    return small.getvalue()


def _rounded(code: str) -> str:
    """Two decimals of each length: the last bits of a length differ between processors."""

    def short(number: re.Match) -> str:
        return f"{round(float(number[0]), 2):g}"

    return re.sub(r"<[^>]*>", lambda tag: re.sub(r"-?\d+\.\d{3,}", short, tag[0]), code)


def _numbered(code: str, label: str) -> str:
    """Ids that matplotlib makes of a hash of positions are numbered in their order.

    The label is in them, so that those of two pictures on one page differ.
    """
    mark = hashlib.sha256(label.encode()).hexdigest()[:6]
    found = re.findall(r'id="(\w*[0-9a-f]{10})"', code)
    for number, name in enumerate(dict.fromkeys(found)):
        code = code.replace(name, f"{name[0]}{mark}-{number}")
    return code


def save(figure: "Figure", path: str | Path) -> None:
    """Write the figure to a file whose name ends in .svg or .png."""
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"{path}: a picture is written as .svg or .png: choose such a name.")
    if path.suffix == ".svg":
        path.write_bytes(svg(figure))
    else:
        metadata = {"Software": None, "Description": figure.get_label()}
        figure.savefig(path, dpi=200, metadata=metadata)


def _chips(canvas: Canvas, band: Band, roles: Sequence[str]) -> None:
    """The names of the ranks, with their roles or the root below them.

    The root of a further call stands beside it if it is another one.
    """
    for rank, y in enumerate(band.tops[:-1]):
        canvas.chip(MARGIN, y + CELL / 2, rank)
    for role, y in zip(roles, band.tops[:-1], strict=False):
        canvas.write(MARGIN + CHIP / 2, y + CELL / 2 + 0.22, role, ha="center")
    if roles:
        return
    roots = [block.call.origins.root for block in band.blocks]
    for block, root in zip(band.blocks, roots, strict=True):
        if root is None:
            continue
        y = band.tops[root] + CELL / 2
        if block is band.blocks[0]:
            canvas.write(MARGIN + CHIP / 2, y + 0.22, "root", ha="center", weight="bold")
        elif root != roots[0]:
            canvas.write(block.left - 0.2, y, "root", ha="center", weight="bold")


def _block(canvas: Canvas, block: Block, tops: list[float], prefix: str) -> None:
    if block.call.caption:
        canvas.write(block.left, tops[0] - 1.7 * LINE, block.call.caption, 9, weight="bold")
    origins = block.call.origins
    panels = {"before": origins.before, "after": origins.after}
    for (name, rows), heading in zip(panels.items(), block.call.names, strict=True):
        left = block.lefts[name]
        canvas.write(left, tops[0] - 0.6 * LINE, heading)
        for rank, row in enumerate(rows):
            top = tops[rank]
            if not row:
                text = "no buffer" if row is None else "empty"
                if rank in block.call.absent:
                    text = "not in the group" if name == "before" else ""
                canvas.write(left, top + CELL / 2, text, style="italic")
            for number, (cell, (x, y)) in enumerate(
                zip(row or (), block.places[name][rank], strict=True)
            ):
                gid = f"{prefix}{name}/r{rank}/e{number}"
                draw_cell(canvas, (left + x, top + y, block.cell, CELL), cell, gid, block.size)
                if cell.state == "reduced" and has_labels(block.call):
                    below = left + x + block.cell / 2, top + y + CELL + 0.08
                    canvas.write(*below, cell.label, ha="center")
    _arrow(canvas, block, (tops[0] + tops[-1] - 0.11) / 2, prefix)


def _arrow(canvas: Canvas, block: Block, y: float, prefix: str) -> None:
    """From before to after, with the name of the call above it."""
    begin = block.left + block.spans["before"] + 0.12
    end = block.lefts["after"] - 0.12
    look = {"mutation_scale": 13, "linewidth": 1.6, "color": DARK}
    canvas.arrow([(begin, y), (end, y)], f"{prefix}arrow", **look)
    lines = block.call.arrow
    for number, line in enumerate(lines):
        above = y - 0.12 - 0.17 * (len(lines) - 1 - number)
        canvas.write((begin + end) / 2, above, line, ARROW_SIZE, ha="center", weight="bold")


def legend(calls: Sequence[CallPanel]) -> list[str]:
    """What colours, edges and patterns of the cells mean: a sentence for each that occurs."""
    states = {state for call in calls for state in call.origins.states()}
    cells = [cell for call in calls for row in call.origins.after for cell in row or ()]
    if any(cell.state == "untouched" and not cell.ranks for cell in cells):
        states.add("unknown")
    # A minimum or maximum is made from no other values: a note says what its stripes mean.
    if {call.origins.op for call in calls} <= {"MIN", "MAX"}:
        states.discard("reduced")
    return [_COLOUR, *(words for state, words in _MEANINGS.items() if state in states)]


def draw_cell(canvas: Canvas, box: Box, cell: PictureCell, gid: str, size: float = VALUE) -> None:
    """A cell with its value, in letters of this size."""
    ground = _fill(canvas, box, cell, gid)
    x, y, width, height = box
    # Text cannot be read on a pattern.
    if len(cell.ranks) > 1 or _look(cell) in ("padding", "undefined", "unknown"):
        canvas.box((x + 0.05 * width, y + 0.17 * height, 0.9 * width, 0.66 * height), ground)
    style = {"colour": ink(ground), "ha": "center"}
    canvas.write(x + width / 2, y + height / 2, cell.text, size, weight="bold", **style)


def _fill(canvas: Canvas, box: Box, cell: PictureCell, gid: str | None = None) -> str:
    """The background of a cell, with a stripe for each rank that a value of several is made from.

    Returns the colour behind its text.
    """
    if len(cell.ranks) > 1 or cell.state == "undefined":
        ground = LIGHT
    else:
        ground = colour_of(cell.ranks[0]) if cell.ranks else _NO_RANK
    if cell.state == "padding":
        ground = tint(ground)
    canvas.box(box, ground, gid, **_LOOKS.get(_look(cell), _PLAIN))
    if len(cell.ranks) > 1:
        x, y, width, height = box
        step = width / len(cell.ranks)
        for number, rank in enumerate(cell.ranks):
            stripe = x + number * step, y, step, height
            canvas.box(stripe, colour_of(rank), gid and f"{gid}/r{rank}")
    return ground


def _look(cell: PictureCell) -> str:
    """A value that stayed may still be that of several ranks."""
    return "unknown" if cell.state == "untouched" and not cell.ranks else cell.state
