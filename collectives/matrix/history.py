"""The recorded matrices of several versions of torch (matrices/*.json), and what became of each cell from version to version.

collectives matrix --backend gloo --device cpu --json collectives/matrix/matrices/torch-2.14.json   # how one is recorded
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from collectives.backends.claims import number
from collectives.matrix.recorded import UNAVAILABLE, key, read, told

FOLDER = Path(__file__).with_name("matrices")

ABSENT = "absent"  # the state of a cell in a version that has no such function or dtype


@dataclass(frozen=True)
class Run:
    """Neighbours among the recorded versions, `first` to `last`, in which a cell has the same state. `detail` is the last one's."""

    first: str
    last: str
    state: str
    detail: str

    def __str__(self) -> str:
        return told({"state": self.state, "detail": self.detail})

    @property
    def span(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


@functools.cache
def matrices() -> tuple[dict, ...]:
    """All recorded matrices, the oldest version first."""
    return tuple(
        sorted(
            (read(path) for path in FOLDER.glob("*.json")),
            key=lambda matrix: number(matrix["torch"]),
        )
    )


def release(version: str) -> str:
    """2.13, of 2.13.0+cpu."""
    return ".".join(map(str, number(version)[:2]))


def named(version: str) -> dict | None:
    """The recorded matrix of a version, as in "2.13"; None for a word that is no version. ValueError if there is no such matrix."""
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        return None
    wanted = number(version)
    found = [matrix for matrix in matrices() if number(matrix["torch"])[: len(wanted)] == wanted]
    if not found:
        known = ", ".join(release(matrix["torch"]) for matrix in matrices())
        raise ValueError(f"no matrix of torch {version} is recorded: there are {known}.")
    return found[0]


def histories(cells: list[dict], recorded: tuple[dict, ...]) -> dict[tuple, list[Run]]:
    """By the cells' keys: what the recorded matrices, oldest first, say of them. One that could not measure a cell says nothing."""
    found: dict[tuple, list[Run]] = {key(cell): [] for cell in cells}
    for matrix in recorded:
        version = release(matrix["torch"])
        its = {key(cell): cell for cell in matrix["cells"]}
        dtypes = {cell["dtype"] for cell in matrix["cells"]}
        for cell in cells:
            if answer := _answer(its.get(key(cell)), cell["dtype"], dtypes, version):
                runs = found[key(cell)]
                first = runs.pop().first if runs and runs[-1].state == answer[0] else version
                runs.append(Run(first, version, *answer))
    return found


def _answer(
    cell: dict | None, dtype: str | None, dtypes: set, version: str
) -> tuple[str, str] | None:
    """A recorded cell's state and detail; None where it was not measured."""
    if cell is None:
        return None if dtype in dtypes else (ABSENT, f"torch {version} has no {dtype}")
    if cell["state"] != UNAVAILABLE:
        return cell["state"], cell["detail"]
    return (ABSENT, cell["detail"]) if cell["called"] is None else None


def story(runs: list[Run]) -> str:
    """In words: "until 2.6: refuses (RuntimeError: no); since 2.9: works". Empty where nothing is recorded."""
    if len(runs) < 2:
        return "".join(f"{run.span}: {run}" for run in runs)
    first, *middle, last = runs
    return "; ".join(
        [
            f"until {first.last}: {first}",
            *(f"{run.span}: {run}" for run in middle),
            f"since {last.first}: {last}",
        ]
    )


def contradicted(cell: dict, version: str, runs: list[Run]) -> Run | None:
    """What is recorded for this version of torch, or for the nearest one before it, if it is not what was measured."""
    before = [run for run in runs if number(run.first) <= number(release(version))]
    return (
        before[-1]
        if before and before[-1].state != cell["state"] and cell["state"] != UNAVAILABLE
        else None
    )
