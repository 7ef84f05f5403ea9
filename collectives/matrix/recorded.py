"""A recorded matrix (what `collectives matrix --json` writes): read it, and say cell by cell what is different now."""

import json
from dataclasses import dataclass
from pathlib import Path

from collectives.backends.claims import STATES

FORMAT = 1

UNAVAILABLE = "unavailable"  # a fact of the machine, neither better nor worse than anything

# How a table shows a state, in the terminal and on the page.
MARKS = {"works": "+", "refuses": "r", "wrong": "W", "hangs": "H", "crashes": "C", UNAVAILABLE: "-"}

KEY = ("collective", "form", "backend", "device", "dtype", "op", "world_size")
FIELDS = {*KEY, "called", "state", "detail", "seconds"}


@dataclass(frozen=True)
class Difference:
    """One cell that is not what it was. `kind` is better, worse, new (was not measured) or gone (is not measured any more)."""

    kind: str
    before: dict | None
    after: dict | None

    def __str__(self) -> str:
        was, now = (
            "not measured" if cell is None else told(cell) for cell in (self.before, self.after)
        )
        return f"{self.kind}: {name(self.after or self.before)}: was {was}, is {now}"


def read(path: str | Path) -> dict:
    """The matrix in a file. ValueError, in one sentence, if it is not one of ours or is newer than this program."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is not a recorded matrix: it is not text; name a file written by `collectives matrix --json`."
        ) from None
    try:
        matrix = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError(
            f"{path} is not a recorded matrix: it is not JSON; name a file written by `collectives matrix --json`."
        ) from None
    if fault := fault_of(matrix):
        raise ValueError(f"{path} {fault}")
    return matrix


def write(matrix: dict, path: Path) -> None:
    """Write a matrix, a cell a line: small enough to be kept, and a difference between two files shows the cells that differ."""
    head = json.dumps(
        {name: value for name, value in matrix.items() if name != "cells"}, ensure_ascii=False
    )
    cells = ",\n".join(
        json.dumps(cell, ensure_ascii=False, separators=(",", ":")) for cell in matrix["cells"]
    )
    path.write_text(f'{head[:-1]}, "cells": [\n{cells}\n]}}\n', encoding="utf-8")


def fault_of(matrix) -> str | None:
    """What keeps this object from being a matrix that we can read, as the rest of a sentence; None if nothing does."""
    ours = "name a file written by `collectives matrix --json`."
    if not isinstance(matrix, dict) or "format" not in matrix or "cells" not in matrix:
        return f"is not a recorded matrix: it has no `format` and `cells`; {ours}"
    number = matrix["format"]
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        return f"is not a recorded matrix: its format is {number!r}, not a number; {ours}"
    if number > FORMAT:
        return f"has format {number}, this version of collectives reads up to {FORMAT}: update collectives."
    if not isinstance(matrix["cells"], list):
        return f"is not a recorded matrix: its `cells` are no list; {ours}"
    keys = set()
    for count, cell in enumerate(matrix["cells"], 1):
        if not isinstance(cell, dict) or FIELDS - cell.keys():
            missing = (
                ", ".join(sorted(FIELDS - cell.keys())) if isinstance(cell, dict) else "everything"
            )
            return f"is not a recorded matrix: its cell {count} lacks {missing}; {ours}"
        if not all(value is None or isinstance(value, str | int) for value in key(cell)):
            return f"is not a recorded matrix: a field of its cell {count} is neither text nor a number; {ours}"
        if cell["state"] not in (*STATES, UNAVAILABLE):
            return f"has a cell in the state {cell['state']!r}, which is not one of {', '.join((*STATES, UNAVAILABLE))}."
        if key(cell) in keys:
            return f"has the cell {name(cell)} twice: measure it anew."
        keys.add(key(cell))
    return None


def key(cell: dict) -> tuple:
    """What makes a cell the same cell in another run."""
    return tuple(cell[field] for field in KEY)


def name(cell: dict) -> str:
    """A cell in words: all_reduce(SUM, int64) on gloo/cpu, 2 ranks."""
    kind = ", ".join(str(cell[field]) for field in ("op", "dtype") if cell[field] is not None)
    ranks = "1 rank" if cell["world_size"] == 1 else f"{cell['world_size']} ranks"
    return f"{cell['form']}{f'({kind})' if kind else ''} on {cell['backend']}/{cell['device']}, {ranks}"


def told(cell: dict) -> str:
    """A cell's state, with its reason where there is one."""
    return f"{cell['state']} ({cell['detail']})" if cell["detail"] else cell["state"]


def verdict(before: str, after: str) -> str | None:
    """Whether going from one measured state to another is better or worse; None if they are the same."""
    steps = STATES.index(before) - STATES.index(after)
    return "better" if steps > 0 else "worse" if steps < 0 else None


def compare(before: dict, after: dict) -> list[Difference]:
    """The cells of two matrices that differ, worse ones first. A cell that was or is unavailable counts as not measured."""
    old, new = ({key(cell): cell for cell in matrix["cells"]} for matrix in (before, after))
    found = []
    for place in {**old, **new}:
        was, now = old.get(place), new.get(place)
        measured = [cell is not None and cell["state"] != UNAVAILABLE for cell in (was, now)]
        kind = (
            verdict(was["state"], now["state"])
            if all(measured)
            else "new"
            if measured[1]
            else "gone"
            if measured[0]
            else None
        )
        if kind:
            found.append(Difference(kind, was, now))
    return sorted(found, key=lambda one: ("worse", "better", "gone", "new").index(one.kind))
