"""The results of a step as text: a line for each rank, a column for each value it returned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collectives.words import printable

if TYPE_CHECKING:
    from collectives.course.outcome import RankOutcome
    from collectives.recording.call import Call


@dataclass(frozen=True)
class StepReport:
    """What `run` prints about a step, and the reason if the step was skipped.

    results: by rank; of a step in a lab, which ran once, the one result. outcomes: of a mistake or
    a cure, by rank. calls: of all ranks, None if they were not recorded.
    """

    name: str
    text: str = ""
    skipped: str | None = None
    results: list = field(default_factory=list)
    outcomes: list[RankOutcome] = field(default_factory=list)
    calls: list[Call] | None = None


def table(name: str, results: list, how_known: str = "proved") -> str:
    """What a lesson prints: the step's name, the number of ranks, and what each rank returned.

    A dict that a rank returns has a column for each key; anything else is the column `result`.
    """
    ranks = "1 rank" if len(results) == 1 else f"all {len(results)} ranks"
    rows = [result if isinstance(result, dict) else {"result": result} for result in results]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[str(rank), *(_text(row.get(key)) for key in keys)] for rank, row in enumerate(rows)]
    return aligned(f"{name}: {how_known} on {ranks}", [["rank", *keys], *cells])


def aligned(title: str, rows: list[list[str]]) -> str:
    """The title, and below it the cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(f"  {'  '.join(padded)}".rstrip())
    return "\n".join([title, *lines]) + "\n"


def _text(value, inside_list: bool = False) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if value is None:
        return "-"
    if isinstance(value, float):
        return str(round(value, 4))
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(item, inside_list=True) for item in value) + "]"
    return printable(repr(value) if inside_list else value)
