"""Measured cells: what was tried, and what became of it.

`collectives matrix` makes them, `--json` writes them (recorded.py), and everything that prints or
compares a matrix reads them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from collectives.backends.claims import STATES
from collectives.semantics.cell import Cell

# The state of a cell that this machine cannot try. It is neither better nor worse than another.
UNAVAILABLE = "unavailable"

# How a table shows a state, in the terminal and on the page.
MARKS = {"works": "+", "refuses": "r", "wrong": "W", "hangs": "H", "crashes": "C", UNAVAILABLE: "-"}


@dataclass(frozen=True)
class Measured(Cell):
    """A cell with its outcome.

    `called` is the name of the function in this torch; None if it has no such function. `state` is
    one of STATES or UNAVAILABLE. `detail` is the exception's type and first line, or another
    reason; it is empty where the cell works.
    """

    called: str | None
    state: str
    detail: str
    seconds: float

    @classmethod
    def of(
        cls, cell: Cell, called: str | None, state: str, detail: str, seconds: float = 0.0
    ) -> "Measured":
        return cls(**vars(cell), called=called, state=state, detail=detail, seconds=seconds)

    @property
    def cell(self) -> Cell:
        """What was tried: in another run it is the same cell."""
        return Cell(*(getattr(self, field.name) for field in fields(Cell)))

    @property
    def outcome(self) -> str:
        """The state, with its reason where there is one: "refuses (RuntimeError: no)"."""
        return f"{self.state} ({self.detail})" if self.detail else self.state

    @property
    def was_tried(self) -> bool:
        return self.state in STATES


@dataclass(frozen=True)
class Matrix:
    """The cells of a run, and what they were measured with."""

    torch: str
    nccl: str | None
    cuda: str | None
    mpi: str | None
    platform: str
    cells: list[Measured]


def by_column(cells: Iterable[Measured]) -> dict[tuple[str, str, int], list[Measured]]:
    """The cells of each backend, device and world size."""
    columns: dict[tuple[str, str, int], list[Measured]] = {}
    for cell in cells:
        columns.setdefault(cell.column, []).append(cell)
    return columns
