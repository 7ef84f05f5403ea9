"""How many ranks train before, during and after an accident, by the clock."""

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.style
from matplotlib.figure import Figure

from collectives.pictures.colours import PAGE, PALETTE, WRONG, edge
from collectives.pictures.page import LINE, MARGIN, WIDEST, Canvas, breadth, wrapped

_BEFORE = 5.0  # seconds that are shown before the accident
_ROW, _RANK = 0.5, 0.13  # the height of a row, and of each rank in it
_COLOUR = PALETTE[1]


class Story(NamedTuple):
    """`last` and `again`: seconds from the accident to the last step before the pause and to the
    first one after it; None where there is no pause.
    """

    name: str
    before: int
    after: int
    last: float | None
    again: float | None


def draw(stories: dict[str, Sequence[Story]], *, title: str = "") -> Figure:
    """The figure, for `picture.svg` and `picture.save`: a block for each heading of `stories`.

    The pause of a story has the gid pause/<heading>/<name>.
    """
    with matplotlib.style.context("default"):
        figure = _drawn(stories, title)
    figure.set_label(f"{title or 'How many ranks train'}. {describe(stories)}")
    return figure


def describe(stories: dict[str, Sequence[Story]]) -> str:
    """The same in sentences, for readers who cannot see it."""
    return " ".join(
        f"{heading}: {'; '.join(map(_in_words, rows))}." for heading, rows in stories.items()
    )


def _in_words(one: Story) -> str:
    if one.again is None:
        return f"{one.name}, {_ranks(one.before)} train on"
    return f"{one.name}, {_ranks(one.before)}, then {_ranks(one.after)} after {one.again:.0f} s"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _drawn(stories: dict[str, Sequence[Story]], title: str) -> Figure:
    rows = [one for block in stories.values() for one in block]
    left = MARGIN + max(breadth(one.name) for one in rows) + 0.1
    end = max(one.again for one in rows if one.again is not None) + 5
    scale = (WIDEST - MARGIN - left) / (_BEFORE + end)
    legend = (
        "A bar is as high as there are ranks that train. Between two bars no step is made. "
        "Seconds count from the accident."
    )
    lines = wrapped(legend, WIDEST - 2 * MARGIN)
    top = MARGIN + 0.35
    bottom = top + sum(1.6 * LINE + _ROW * len(block) for block in stories.values())
    canvas = Canvas(WIDEST, bottom + 1.6 * LINE + LINE * len(lines) + MARGIN / 2)
    canvas.write(MARGIN, MARGIN + 0.1, title, 10, weight="bold", gid="title")
    zero, y = left + _BEFORE * scale, top
    for heading, block in stories.items():
        canvas.write(MARGIN, y + 0.7 * LINE, heading, 10, weight="bold")
        y += 1.6 * LINE
        _seconds(
            canvas, [zero + second * scale for second in range(0, int(end), 10)], y, len(block)
        )
        for one in block:
            _row(canvas, one, (left, zero, WIDEST - MARGIN), scale, y, heading)
            y += _ROW
    for second in range(0, int(end), 10):
        words = f"{second} s" if second else "accident"
        canvas.write(zero + second * scale, bottom + 0.9 * LINE, words, ha="center")
    canvas.lines(MARGIN, bottom + 2.2 * LINE, lines)
    return canvas.figure


def _seconds(canvas: Canvas, xs: list[float], y: float, rows: int) -> None:
    """A line for each ten seconds; the first is that of the accident."""
    for number, x in enumerate(xs):
        look = {"color": "#aaaaaa", "linewidth": 0.6} if number else {"color": WRONG}
        canvas.axes.plot([x, x], [y, y + _ROW * rows], **{"linewidth": 1, "zorder": 0} | look)


def _row(canvas: Canvas, one: Story, xs: tuple, scale: float, y: float, heading: str) -> None:
    left, zero, right = xs
    foot = y + _ROW - 0.1
    canvas.write(MARGIN, foot - _RANK, one.name)
    if one.again is None:
        _bar(canvas, left, right, foot, one.before)
        canvas.write(zero + 0.1, foot - _RANK * one.before - 0.09, "nobody notices")
        return
    stop, again = zero + max(0.0, one.last) * scale, zero + one.again * scale
    _bar(canvas, left, stop, foot, one.before)
    look = {"color": edge(PALETTE[5]), "linewidth": 1.2, "linestyle": ":"}
    canvas.axes.plot([stop, again], [foot, foot], gid=f"pause/{heading}/{one.name}", **look)
    ground = {"facecolor": PAGE, "linewidth": 0, "pad": 1}
    canvas.write(again - 0.06, foot - _RANK, f"{one.again:.0f} s", ha="right", bbox=ground)
    _bar(canvas, again, right, foot, one.after)


def _bar(canvas: Canvas, left: float, right: float, foot: float, ranks: int) -> None:
    for rank in range(ranks):
        look = {"edgecolor": edge(_COLOUR), "linewidth": 0.8}
        canvas.box(left, foot - _RANK * (rank + 1), right - left, _RANK - 0.02, _COLOUR, **look)
