"""A recorded matrix, as `collectives matrix --json` writes it: read, write, compare."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from collectives.backends.claims import STATES
from collectives.matrix.compare import Difference, Expectation, compare_all
from collectives.matrix.measured import FIELDS, UNAVAILABLE, key, name, outcome

FORMAT = 1

# The state of a cell that only one of two matrices has.
_NOT_MEASURED = "not measured"

_HOW = "name a file written by `collectives matrix --json`."


def read(path: str | Path) -> dict:
    """The matrix in a file.

    ValueError, in one sentence, if the file is no matrix or is newer than this program.
    """
    not_ours = f"{path} is not a recorded matrix"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{not_ours}: it is not text; {_HOW}") from None
    try:
        matrix = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError(f"{not_ours}: it is not JSON; {_HOW}") from None
    if fault := fault_of(matrix):
        raise ValueError(f"{path} {fault}")
    return matrix


def write(matrix: dict, path: Path) -> None:
    """Write a matrix with one line for each cell: `diff` then shows the cells that differ."""
    facts = {name: value for name, value in matrix.items() if name != "cells"}
    head = json.dumps(facts, ensure_ascii=False)
    cells = ",\n".join(
        json.dumps(cell, ensure_ascii=False, separators=(",", ":")) for cell in matrix["cells"]
    )
    path.write_text(f'{head[:-1]}, "cells": [\n{cells}\n]}}\n', encoding="utf-8")


def fault_of(matrix) -> str | None:
    """Why this object is not a matrix that we can read: the rest of a sentence, or None."""
    if not isinstance(matrix, dict) or "format" not in matrix or "cells" not in matrix:
        return f"is not a recorded matrix: it has no `format` and `cells`; {_HOW}"
    number = matrix["format"]
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        return f"is not a recorded matrix: its format is {number!r}, not a number; {_HOW}"
    if number > FORMAT:
        return (
            f"has format {number}, this version of collectives reads up to {FORMAT}: "
            "update collectives."
        )
    if not isinstance(matrix["cells"], list):
        return f"is not a recorded matrix: its `cells` are no list; {_HOW}"
    keys = set()
    for count, cell in enumerate(matrix["cells"], 1):
        if fault := _fault_of_cell(cell, count):
            return fault
        if key(cell) in keys:
            return f"has the cell {name(cell)} twice: measure it anew."
        keys.add(key(cell))
    return None


def _fault_of_cell(cell, count: int) -> str | None:
    if not isinstance(cell, dict):
        return f"is not a recorded matrix: its cell {count} lacks everything; {_HOW}"
    if missing := ", ".join(sorted(FIELDS - cell.keys())):
        return f"is not a recorded matrix: its cell {count} lacks {missing}; {_HOW}"
    if not all(value is None or isinstance(value, str | int) for value in key(cell)):
        return (
            f"is not a recorded matrix: a field of its cell {count} is neither text nor a number; "
            f"{_HOW}"
        )
    states = (*STATES, UNAVAILABLE)
    if cell["state"] not in states:
        return (
            f"has a cell in the state {cell['state']!r}, which is not one of {', '.join(states)}."
        )
    return None


@dataclass(frozen=True)
class Recorded(Expectation):
    """What a cell was when it was recorded."""

    before: dict = field(default_factory=dict)

    def describe(self, kind: str, different: list[dict], cells: list[dict]) -> str:
        (now,) = different
        return f"{kind}: {name(now)}: was {outcome(self.before)}, is {outcome(now)}"


def differences(before: dict, after: dict) -> list[Difference]:
    """How the cells of the matrix `after` differ from those of `before`, worse ones first.

    An unavailable cell counts as not measured. Seconds and the words of an error do not count.
    """
    old, new = ({key(cell): cell for cell in matrix["cells"]} for matrix in (before, after))
    missing = {"state": _NOT_MEASURED, "detail": ""}
    expected = []
    for place, cell in (old | new).items():
        was, now = old.get(place, cell | missing), new.get(place, cell | missing)
        expected.append((Recorded((was["state"],), before=was), [now]))
    return compare_all(expected)
