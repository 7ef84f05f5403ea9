"""A measured cell: a dict with the fields of spec.cell.Cell, and what became of it.

The JSON that `collectives matrix --json` writes holds these dicts as they are, and everything that
prints or compares a matrix reads them.
"""

from collections.abc import Iterable
from dataclasses import asdict, fields

from collectives.backends.claims import STATES
from collectives.semantics.cell import Cell

# The state of a cell that this machine cannot try. It is neither better nor worse than another.
UNAVAILABLE = "unavailable"

# How a table shows a state, in the terminal and on the page.
MARKS = {"works": "+", "refuses": "r", "wrong": "W", "hangs": "H", "crashes": "C", UNAVAILABLE: "-"}

# What makes a cell the same cell in another run, and all that is known of it.
KEY = tuple(field.name for field in fields(Cell))
FIELDS = {*KEY, "called", "state", "detail", "seconds"}


def measured(cell: Cell, called: str | None, state: str, detail: str, seconds: float = 0.0) -> dict:
    """The record of a cell.

    `called` is the name of the function in this torch; None if it has no such function. `state` is
    one of STATES or UNAVAILABLE. `detail` is the exception's type and first line, or another
    reason; it is empty where the cell works.
    """
    return asdict(cell) | {
        "called": called,
        "state": state,
        "detail": detail,
        "seconds": round(seconds, 4),
    }


def key(cell: dict) -> tuple:
    return tuple(cell[field] for field in KEY)


def place(cell: dict) -> str:
    """The backend and the device, as in "gloo/cpu"."""
    return f"{cell['backend']}/{cell['device']}"


def name(cell: dict) -> str:
    """A cell in words, as in "all_reduce(SUM, int64) on gloo/cpu, 2 ranks"."""
    kind = ", ".join(str(cell[field]) for field in ("op", "dtype") if cell[field] is not None)
    form = f"{cell['form']}({kind})" if kind else cell["form"]
    ranks = "1 rank" if cell["world_size"] == 1 else f"{cell['world_size']} ranks"
    return f"{form} on {place(cell)}, {ranks}"


def outcome(cell: dict) -> str:
    """A cell's state, with its reason where there is one: "refuses (RuntimeError: no)"."""
    return f"{cell['state']} ({cell['detail']})" if cell["detail"] else cell["state"]


def is_measured(cell: dict) -> bool:
    return cell["state"] in STATES


def by_column(cells: Iterable[dict]) -> dict[tuple[str, str, int], list[dict]]:
    """The cells of each backend, device and world size."""
    columns: dict[tuple[str, str, int], list[dict]] = {}
    for cell in cells:
        column = cell["backend"], cell["device"], cell["world_size"]
        columns.setdefault(column, []).append(cell)
    return columns
