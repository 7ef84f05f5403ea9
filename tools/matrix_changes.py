"""What gloo does otherwise in one recorded version of torch than in the one before it."""

import itertools
from collections import Counter

from collectives.matrix import recorded
from collectives.matrix.measured import Matrix
from collectives.words import runs
from tools import markdown

_NEW = "torch had no such call"


def tables() -> str:
    """A table for each recorded version but the first, with a row for each form that differs."""
    parts = []
    for old, new in itertools.pairwise(recorded.releases()):
        before, after = (
            recorded.read(recorded.FOLDER / f"torch-{version}.json") for version in (old, new)
        )
        head = ["call", "ranks", "cells", f"torch {old}", f"torch {new}"]
        rows = _rows(before, after)
        parts.append(markdown.table(head, rows) if rows else f"torch {new} does as {old}.")
    return "\n\n".join(parts)


def _rows(before: Matrix, after: Matrix) -> list[list[str]]:
    """Cells that only one of them has do not count, unless torch did not have the call before."""
    states = {cell.cell: cell.state for cell in before.cells}
    known = {cell.name for cell in before.cells}
    counted: Counter[tuple[str, str, str]] = Counter()
    sizes: dict[tuple[str, str, str], set[int]] = {}
    for cell in after.cells:
        was = states.get(cell.cell, None if cell.name in known else _NEW)
        if was is None or was == cell.state:
            continue
        change = cell.name if was == _NEW else cell.form, was, cell.state
        counted[change] += 1
        sizes.setdefault(change, set()).add(cell.world_size)
    return [
        [f"`{form}`", ", ".join(runs(sorted(sizes[form, was, now]))), str(number), was, now]
        for (form, was, now), number in counted.items()
    ]
