"""A recorded matrix, as `collectives matrix --json` writes it: read, write, compare."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from packaging.version import Version

from collectives.backends.claims import STATES
from collectives.matrix.claimed import CellDifference, compare, in_order
from collectives.matrix.measured import UNAVAILABLE, Matrix, Measured

FORMAT = 1
_FACTS = [field.name for field in fields(Matrix) if field.name != "cells"]
_FIELDS = {field.name for field in fields(Measured)}

# The matrices of the tested torch and of older and newer ones, measured with gloo on the CPU by
# collectives matrix --backend gloo --device cpu --json collectives/matrix/matrices/torch-2.13.json
FOLDER = Path(__file__).with_name("matrices")

# So many cells that are new or gone are named; the others are counted.
_NAMED = 20

# The state of a cell that only one of two matrices has.
_NOT_MEASURED = "not measured"

_ADVICE = "name a file written by `collectives matrix --json`."


def read(path: str | Path) -> Matrix:
    """The matrix in a file.

    ValueError, in one sentence, if the file is no matrix or is newer than this program.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        document = json.loads(text, parse_constant=_refuse)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not JSON: {_ADVICE}") from None
    if fault := fault_of(document):
        raise ValueError(f"{path} {fault}")
    facts = {fact: document.get(fact) for fact in _FACTS}
    return Matrix(**facts, cells=list(map(_from_json, document["cells"])))


def _from_json(cell: dict[str, Any]) -> Measured:
    return Measured(**{field: cell[field] for field in _FIELDS})


def _refuse(word: str) -> None:
    """JSON has no NaN and no Infinity."""
    raise ValueError(word)


def releases() -> list[str]:
    """The versions of torch whose matrix is recorded, as in "2.13", the oldest first."""
    found = (path.stem.removeprefix("torch-") for path in FOLDER.glob("torch-*.json"))
    return sorted(found, key=Version)


def named(version: str) -> Matrix | None:
    """The recorded matrix of a version, as in "2.13"; None for a word that is no version.

    ValueError if there is no such matrix.
    """
    if not (found := re.fullmatch(r"(\d+\.\d+)(\.\d+)?", version)):
        return None
    if (release := found[1]) not in releases():
        known = ", ".join(releases())
        raise ValueError(f"no matrix of torch {version} is recorded: there are {known}.")
    return read(FOLDER / f"torch-{release}.json")


def as_json(matrix: Matrix) -> str:
    """What `read` reads, with one line for each cell: `diff` then shows the cells that differ."""
    facts = {"format": FORMAT} | {fact: getattr(matrix, fact) for fact in _FACTS}
    head = json.dumps(facts, ensure_ascii=False)
    cells = ",\n".join(
        json.dumps(vars(cell), ensure_ascii=False, separators=(",", ":")) for cell in matrix.cells
    )
    return f'{head[:-1]}, "cells": [\n{cells}\n]}}\n'


def fault_of(document: Any) -> str | None:
    """Why this JSON is not a matrix that we can read: the rest of a sentence, or None."""
    try:
        if type(document["format"]) is not int:
            return f"is not a recorded matrix: {_ADVICE}"
        if document["format"] > FORMAT:
            return (
                f"has format {document['format']}, this version of collectives reads up to "
                f"{FORMAT}: update collectives."
            )
        for fact in ("torch", "platform"):
            if not _fits(fact, document.get(fact)):
                return f"is not a recorded matrix: it lacks {fact}; {_ADVICE}"
        if not document["cells"]:
            return f"is a matrix without cells: {_ADVICE}"
        seen = set()
        for count, cell in enumerate(document["cells"], 1):
            if missing := ", ".join(sorted(_FIELDS - cell.keys())):
                return f"is not a recorded matrix: its cell {count} lacks {missing}; {_ADVICE}"
            if wrong := [field for field in _FIELDS if not _fits(field, cell[field])]:
                field = min(wrong)
                was = f"{field} = {cell[field]!r}"
                return f"is not a recorded matrix: its cell {count} has {was:.80}; {_ADVICE}"
            if cell["state"] not in (*STATES, UNAVAILABLE):
                return f"has a cell in the state {cell['state']!r}, which is not known."
            tried = _from_json(cell).cell
            if tried in seen:
                return f"has the cell {tried} twice: measure it anew."
            seen.add(tried)
    except (AttributeError, KeyError, TypeError):
        return f"is not a recorded matrix: {_ADVICE}"
    return None


def _fits(field: str, value) -> bool:
    """Whether a fact, or a field of a cell, may have this value."""
    if field == "world_size":
        return type(value) is int and value > 0
    if field == "seconds":
        return type(value) in (int, float)
    if value is None:
        return field in ("dtype", "op", "called")
    return isinstance(value, str) and (bool(value) or field == "detail")


def differences(before: Matrix, after: Matrix) -> list[CellDifference]:
    """How the cells of the matrix `after` differ from those of `before`, worse ones first.

    An unavailable cell counts as not measured. Seconds and the words of an error do not count.
    """
    old, new = ({cell.cell: cell for cell in matrix.cells} for matrix in (before, after))
    found = []
    for cell in old | new:
        missing = Measured.of(cell, None, _NOT_MEASURED, "")
        was, now = old.get(cell, missing), new.get(cell, missing)
        kind = compare(was.state, now.state)
        if kind is not None:
            text = f"{kind}: {cell}: was {was.outcome}, is {now.outcome}"
            found.append(CellDifference(kind, text))
    return in_order(found)


def report(
    before: Matrix, name: str, matrix: Matrix, is_selection: bool = False
) -> tuple[str, int]:
    """How a matrix differs from the one before it, which is called `name`: a text and a status.

    The status is 1 if a cell is better or worse. In a selection, where some cells were left out on
    purpose, none is called gone.
    """
    lines = [f"against {name} (torch {before.torch}):"]
    by_kind: dict[str, list[str]] = {"worse": [], "better": [], "gone": [], "new": []}
    for kind, text in differences(before, matrix):
        by_kind[kind].append(text)
    if is_selection:
        by_kind["gone"] = []
    for kind, texts in by_kind.items():
        shown = texts if kind in ("worse", "better") else texts[:_NAMED]
        lines += [f"  {text}" for text in shown]
        if more := len(texts) - len(shown):
            lines.append(f"  {kind}: {more} more")
    if not any(by_kind.values()):
        lines.append("  no cell differs")
    return "\n".join(lines), int(bool(by_kind["worse"] or by_kind["better"]))
