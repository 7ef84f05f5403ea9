"""What a reader sees of a figure: how large its letters are, what crosses them, and all of it."""

import functools
import re
from collections.abc import Iterator
from xml.etree import ElementTree

from collectives.pictures import picture

svg = functools.cache(picture.svg)
COLUMN = 850  # pixels: the width of a notebook's column


@functools.cache
def boxes(figure) -> list:
    """Each text, and the box that it takes in pixels."""
    figure.draw_without_rendering()
    return [(text.get_text(), text.get_window_extent()) for text in texts(figure)]


def pixels(text) -> float:
    """The size of a text when its figure is shown in a column, which it may have to shrink for."""
    figure = text.get_figure()
    return text.get_fontsize() * 96 / 72 * min(1, COLUMN / (figure.get_figwidth() * 96))


def texts(figure) -> list:
    return [text for text in figure.axes[0].texts if text.get_text()]


def words(figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


def too_small(figure, least: float = 11) -> list[str]:
    """The texts that a reader of the column cannot read."""
    return [text.get_text() for text in texts(figure) if pixels(text) < least]


def crossed(figure) -> list[tuple[str, str]]:
    """(arrow or line, text) for each text that an arrow or a marked line goes through."""
    axes = figure.axes[0]
    lines = [(line.get_gid(), line) for line in axes.lines if line.get_gid()]
    arrows = [(arrow.get_gid(), arrow) for arrow in axes.patches if _is_arrow(arrow)]
    found, every = [], boxes(figure)
    for name, shape in lines + arrows:
        path = shape.get_transform().transform_path(_way(shape))
        # A dotted line is drawn behind the bars: only its dots can hide words.
        is_hit = _has_a_point_in if "/" in name and "-" not in name else _goes_through
        found += [(name, words) for words, box in every if is_hit(path, box)]
    return found


def drawing(figure) -> str:
    """The shapes and words of a figure's SVG in their order: what a snapshot compares.

    A shape has its gid, its colour and its box: the left, upper, right and lower edge in points. Of
    an arrow or a line these are the ends.
    """
    return "\n".join(_drawing(ElementTree.fromstring(svg(figure)), "-"))


def _drawing(element: ElementTree.Element, gid: str) -> Iterator[str]:
    name, found = element.tag.rpartition("}")[2], element.get("id")
    if name in ("defs", "style"):
        return
    if found and not re.fullmatch(r"\w+_\d+", found):  # matplotlib's own
        gid = found
    style = element.get("style") or ""
    fill, stroke = (re.search(rf"\b{what}: (\S+?)(;|$)", style) for what in ("fill", "stroke"))
    colour = next((one[1] for one in (fill, stroke) if one and one[1] != "none"), "")
    colour = "hatched" if colour.startswith("url") else colour
    if name == "path":
        xs, ys = _points(element.get("d") or "")
        if fill and fill[1] == "none":
            ends = xs[0], ys[0], xs[-1], ys[-1]
        else:
            ends = min(xs), min(ys), max(xs), max(ys)
        dashes = " dashed" if "dasharray" in style else ""
        yield " ".join([gid, colour, *map(str, map(round, ends))]) + dashes
    elif name == "use":
        place = [round(float(element.get(axis) or 0)) for axis in ("x", "y")]
        yield " ".join([gid, "dot", *map(str, place)])
    elif name == "text":
        place = [element.get("x"), element.get("y")]
        if None in place:
            place = re.findall(r"-?[\d.]+", element.get("transform") or "")[:2]
        yield " ".join([*(str(round(float(one))) for one in place), repr(element.text)])
    for inner in element:
        yield from _drawing(inner, gid)


def _points(path: str) -> tuple[list[float], list[float]]:
    numbers = [float(one) for one in re.findall(r"-?[\d.]+", path)]
    return numbers[::2], numbers[1::2]


def _way(shape):
    """The points of a line, or of an arrow without its head, in the units of the axes."""
    from matplotlib.path import Path

    if not hasattr(shape, "get_arrowstyle"):
        return shape.get_path()
    return shape._path_original or Path(shape._posA_posB)


def to_hex(colour) -> str:
    from matplotlib import colors  # late: whoever only collects the tests does not wait for it

    return colors.to_hex(colour)


def _is_arrow(patch) -> bool:
    return hasattr(patch, "get_arrowstyle") and patch.get_gid() is not None


def _goes_through(path, box) -> bool:
    return path.intersects_bbox(box, filled=False)


def _has_a_point_in(path, box) -> bool:
    return any(box.contains(x, y) for x, y in path.vertices)
