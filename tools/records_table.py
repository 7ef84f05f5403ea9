"""The tables in records/README.md: matrices and bandwidths that others have measured."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from collectives.bench.bus_table import PLACES
from collectives.matrix import recorded
from collectives.matrix.measured import Matrix, Measured, by_column
from collectives.semantics.calls import LESSONS
from tools import markdown
from tools.first_gpu_run import archive

FOLDER = Path(__file__).parents[1] / "records"


def matrices(folder: Path = FOLDER) -> str:
    """A row for each lesson on a call, a column for each backend and number of ranks of a file."""
    columns: dict[str, list[Measured]] = {}
    for file, matrix in _sent(folder):
        for (backend, device, ranks), cells in by_column(matrix.cells).items():
            head = f"[{backend}, {device}]({file}), {ranks} ranks, torch {matrix.torch}"
            columns[head] = cells
    if not columns:
        return "Nobody has sent a matrix yet."
    rows = [
        [f"`{lesson}`", *(_counted(cells, lesson) for cells in columns.values())]
        for lesson in LESSONS
    ]
    return markdown.table(["lesson", *columns], rows)


def _sent(folder: Path) -> Iterator[tuple[str, Matrix]]:
    """The matrices with the names of their files: an archive of `make gpu` has several."""
    for file in sorted(folder.glob("matrix-*.json")):
        yield file.name, recorded.read(file)
    for file in sorted(folder.glob("first-gpu-run-*.zip")):
        with tempfile.TemporaryDirectory() as place:
            archive.unpack(file, Path(place))
            for matrix in sorted(Path(place).glob("quick_*.json")):
                yield file.name, recorded.read(matrix)


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
