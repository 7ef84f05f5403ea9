"""The recorded matrices of several versions of torch (matrices/*.json), and each cell's history.

This command records the matrix of a version, in an environment with that torch:

collectives matrix --backend gloo --device cpu --json collectives/matrix/matrices/torch-2.14.json

A torch before 2.9 also needs `--import collectives.matrix.older_torch`.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from collectives.backends.claims import number
from collectives.matrix.measured import UNAVAILABLE, is_measured, key, outcome
from collectives.matrix.recorded import read

FOLDER = Path(__file__).with_name("matrices")

ABSENT = "absent"  # the state of a cell in a version that has no such function or dtype


@dataclass(frozen=True)
class VersionSpan:
    """Neighbours among the recorded versions, `first` to `last`, in which a cell has one state.

    `detail` is that of the last one.
    """

    first: str
    last: str
    state: str
    detail: str

    def __str__(self) -> str:
        return outcome({"state": self.state, "detail": self.detail})

    @property
    def versions(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


@functools.cache
def matrices() -> tuple[dict, ...]:
    """All recorded matrices, the oldest version first."""
    found = (read(path) for path in FOLDER.glob("*.json"))
    return tuple(sorted(found, key=lambda matrix: number(matrix["torch"])))


def release(version: str) -> str:
    """2.13, of 2.13.0+cpu."""
    return ".".join(map(str, number(version)[:2]))


def named(version: str) -> dict | None:
    """The recorded matrix of a version, as in "2.13"; None for a word that is no version.

    ValueError if there is no such matrix.
    """
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        return None
    wanted = number(version)
    found = [matrix for matrix in matrices() if number(matrix["torch"])[: len(wanted)] == wanted]
    if not found:
        known = ", ".join(release(matrix["torch"]) for matrix in matrices())
        raise ValueError(f"no matrix of torch {version} is recorded: there are {known}.")
    return found[0]


def histories(cells: list[dict], recorded: tuple[dict, ...]) -> dict[tuple, list[VersionSpan]]:
    """By the cells' keys: the states that the recorded matrices, oldest first, have of them.

    A matrix that could not measure a cell adds nothing to the cell's history.
    """
    found: dict[tuple, list[VersionSpan]] = {key(cell): [] for cell in cells}
    for matrix in recorded:
        version = release(matrix["torch"])
        old = {key(cell): cell for cell in matrix["cells"]}
        dtypes = {cell["dtype"] for cell in matrix["cells"]}
        for cell in cells:
            if answer := _answer(old.get(key(cell)), cell["dtype"], dtypes, version):
                state, detail = answer
                spans = found[key(cell)]
                continues = spans and spans[-1].state == state
                first = spans.pop().first if continues else version
                spans.append(VersionSpan(first, version, state, detail))
    return found


def _answer(
    cell: dict | None, dtype: str | None, dtypes: set, version: str
) -> tuple[str, str] | None:
    """A recorded cell's state and detail; None where it was not measured."""
    if cell is None:
        return None if dtype in dtypes else (ABSENT, f"torch {version} has no {dtype}")
    if is_measured(cell):
        return cell["state"], cell["detail"]
    return (ABSENT, cell["detail"]) if cell["called"] is None else None


def story(spans: list[VersionSpan]) -> str:
    """In words: "until 2.6: refuses (RuntimeError: no); since 2.9: works".

    Empty where nothing is recorded.
    """
    if len(spans) < 2:
        return "".join(f"{span.versions}: {span}" for span in spans)
    first, *between, last = spans
    parts = [f"until {first.last}: {first}"]
    parts += [f"{span.versions}: {span}" for span in between]
    return "; ".join([*parts, f"since {last.first}: {last}"])


def contradicted(cell: dict, version: str, spans: list[VersionSpan]) -> VersionSpan | None:
    """What is recorded for a version of torch, or for the nearest before it, if `cell` differs."""
    before = [span for span in spans if number(span.first) <= number(release(version))]
    if not before or cell["state"] in (before[-1].state, UNAVAILABLE):
        return None
    return before[-1]
