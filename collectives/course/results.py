"""The results of a step as text: a line for each rank, or what the machines of a lab printed."""

import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collectives.backends.availability import Unavailable
from collectives.words import printable

if TYPE_CHECKING:
    from collectives.course.outcome import RankOutcome
    from collectives.recording.call import Call

_NO_SUCH_COMMAND = 127  # a shell's exit status


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
    outcomes: "list[RankOutcome]" = field(default_factory=list)
    calls: "list[Call] | None" = None


def table(name: str, results: list, how_known: str = "proved") -> str:
    """What a lesson prints: the step's name, the number of ranks, and what each rank returned.

    A dict that a rank returns has a column for each key; anything else is the column `result`.
    """
    ranks = "1 rank" if len(results) == 1 else f"all {len(results)} ranks"
    rows = [result if isinstance(result, dict) else {"result": result} for result in results]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[str(rank), *(_text(row.get(key)) for key in keys)] for rank, row in enumerate(rows)]
    return aligned(f"{name}: {how_known} on {ranks}", [["rank", *keys], *cells])


def stdout_lines(done: list[subprocess.CompletedProcess]) -> dict[str, list[str]]:
    """The lines that a command printed on each machine, by machine, in alphabetical order.

    (The ranks of a machine print in any order.) Raises RuntimeError, with stderr, if the command
    failed, and Unavailable, a ValueError, if there is no such command.

    >>> with Lab(2) as lab:  # doctest: +SKIP
    ...     print(stdout_lines(lab.run("hostname")))
    """
    for node, process in enumerate(done):
        if process.returncode == _NO_SUCH_COMMAND:
            raise Unavailable(process.stderr.strip())
        if process.returncode != 0:
            raise RuntimeError(f"node{node}: status {process.returncode}: {process.stderr[-2000:]}")
    return {f"node{node}": sorted(one.stdout.splitlines()) for node, one in enumerate(done)}


def lab_table(name: str, result) -> str:
    """What a step in a lab returned: lines by machine, or the rows of a table (or its `rows`)."""
    title = f"{name}: proved in a lab"
    rows = getattr(result, "rows", result)
    if isinstance(rows, dict):
        lines = [f"  {node}: {line}" for node, lines in rows.items() for line in lines]
        return "\n".join([title, *lines, ""])
    return aligned(title, [list(rows[0]), *(list(map(str, row.values())) for row in rows)])


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
