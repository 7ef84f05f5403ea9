"""Groups that are the rows and the columns of a grid, drawn as this grid."""

from collections.abc import Sequence

from collectives.pictures.colours import PALETTE, edge
from collectives.pictures.page import (
    CHIP,
    LINE,
    MARGIN,
    Canvas,
    Look,
    breadth,
    default_style,
)
from collectives.recording.call import WORLD, Call
from collectives.semantics.calls import BY_NAME, GROUPS
from collectives.words import counted

_ACROSS, _DOWN = 1.15, 0.85
_ROWS, _COLUMNS = edge(PALETTE[4]), edge(PALETTE[5])

_LEGEND = "Each row is a group, and each column is one: a rank is in one of each kind."

Groups = list[tuple[int, ...]]


def grid(calls: Sequence[Call]) -> tuple[Groups, Groups] | None:
    """The rows and the columns; None if the groups in which ranks meet are no grid."""
    met = sorted({call.members for call in calls if _meets(call)})
    columns = [group for group in met if len(group) > 1 and group[1] - group[0] > 1]
    rows = [group for group in met if group not in columns]
    if min(len(rows), len(columns)) < 2:
        return None
    cells = [[set(row) & set(column) for column in columns] for row in rows]
    ranks = [rank for row in rows for rank in row]
    if any(len(cell) != 1 for row in cells for cell in row) or len(set(ranks)) != len(ranks):
        return None
    return (rows, columns) if set(ranks) == {rank for one in columns for rank in one} else None


def _meets(call: Call) -> bool:
    if call.name == "wait" or call.name in GROUPS or call.seq is None or call.group == WORLD:
        return False
    return bool(BY_NAME[call.name].buffers)


def _calls_of(calls: Sequence[Call], group: tuple[int, ...]) -> str:
    """What the first rank of a group calls in it: "tp: all_reduce, 2 times"."""
    found = [
        call
        for call in sorted(calls, key=lambda call: call.number)
        if call.rank == group[0] and call.members == group and _meets(call)
    ]
    names = [call.name for call in found]
    text = ", ".join(
        name + (f", {names.count(name)} times" if names.count(name) > 1 else "")
        for name in dict.fromkeys(names)
    )
    return f"{found[0].group_name}: {text}" if found[0].group_name else text


@default_style
def draw(calls: Sequence[Call], grid: tuple[Groups, Groups], title: str) -> Canvas:
    """The outline of a group has the gid of its ranks: group/0-1."""
    rows, columns = grid
    left, top = MARGIN + 0.35, MARGIN + 0.45
    right, bottom = left + _ACROSS * len(columns), top + _DOWN * len(rows)
    beside = max(breadth(_calls_of(calls, row)) for row in rows)
    page = max(right + 0.1 + beside + MARGIN, 4.6)
    title = title or f"{counted(len(rows) * len(columns), 'rank')} as a grid of groups"
    canvas, sentences = Canvas(title, page), []
    outline: Look = {"facecolor": "none", "linewidth": 1.6, "radius": 0.12, "zorder": 1}
    for number, row in enumerate(rows):
        y, gid = top + _DOWN * number + 0.19, _gid(row)
        width, height = right - left - 0.09, _DOWN - 0.38
        canvas.frame((left, y, width, height), edgecolor=_ROWS, gid=gid, **outline)
        canvas.write(right + 0.06, y + _DOWN / 2 - 0.19, _calls_of(calls, row))
        sentences.append(f"Row {', '.join(map(str, row))}: {_calls_of(calls, row)}.")
        for place, column in enumerate(columns):
            (rank,) = set(row) & set(column)
            canvas.chip(left + _ACROSS * (place + 0.5) - CHIP / 2 - 0.04, y + 0.235, rank)
    for number, column in enumerate(columns):
        x, gid = left + _ACROSS * number + 0.14, _gid(column)
        width, height = _ACROSS - 0.36, bottom - top
        canvas.frame((x, top, width, height), edgecolor=_COLUMNS, gid=gid, **outline)
        text = _calls_of(calls, column)
        canvas.lines(x + _ACROSS / 2 - 0.18, bottom + 0.13, text.split(", "), ha="center")
        sentences.append(f"Column {', '.join(map(str, column))}: {text}.")
    return canvas.end_with(_LEGEND, bottom + 1.7 * LINE, f"{title}. {' '.join(sentences)}")


def _gid(group: tuple[int, ...]) -> str:
    return "group/" + "-".join(map(str, group))
