"""The tables in records/README.md: matrices and bandwidths that others have measured."""

import json
from collections import Counter
from pathlib import Path

from collectives.bench.bus_table import PLACES
from collectives.matrix import recorded
from collectives.matrix.measured import Measured, by_column
from collectives.semantics.calls import LESSONS
from tools import markdown

FOLDER = Path(__file__).parents[1] / "records"


def matrices(folder: Path = FOLDER) -> str:
    """A row for each lesson on a call, a column for each backend and number of ranks of a file."""
    columns: dict[str, list[Measured]] = {}
    for file in sorted(folder.glob("matrix-*.json")):
        matrix = recorded.read(file)
        for (backend, device, ranks), cells in by_column(matrix.cells).items():
            head = f"[{backend}, {device}]({file.name}), {ranks} ranks, torch {matrix.torch}"
            columns[head] = cells
    if not columns:
        return "Nobody has sent a matrix yet."
    rows = [
        [f"`{lesson}`", *(_counted(cells, lesson) for cells in columns.values())]
        for lesson in LESSONS
    ]
    return markdown.table(["lesson", *columns], rows)


def bandwidths(folder: Path = FOLDER) -> str:
    """A row for each collective of a file, with its best bus bandwidth."""
    rows = []
    for file in sorted(folder.glob("bus-*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        where = f"[{found['backend']}, {found['device']}]({file.name})"
        for collective, sizes in found["rows"].items():
            best = max(
                row["figures"][place]["busbw"]
                for row in sizes
                for place in PLACES
                if place in row["figures"]
            )
            rows.append([where, str(found["ranks"]), f"`{collective}`", f"{best:.2f}"])
    if not rows:
        return "Nobody has sent a table of bandwidths yet."
    return markdown.table(["measured with", "ranks", "collective", "best busbw (GB/s)"], rows)


def _counted(cells: list[Measured], lesson: str) -> str:
    """ "works 24, refuses 2", in the order of frequency; "-" if the file has no such cell."""
    states = Counter(cell.state for cell in cells if cell.collective == lesson)
    return ", ".join(f"{state} {number}" for state, number in states.most_common()) or "-"
