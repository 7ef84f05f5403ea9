"""What the matrix costs on gloo, in full and `--quick`.

It is compared with torch.multiprocessing.spawn for each cell.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from collectives.bench.launch import launches
from collectives.bench.timing import Row, process, timed

# The number of ranks of a cell.
_RANKS = 2

# The runs that are measured: arguments of `collectives matrix`, the most seconds that the run may
# take, and the least ratio.
_RUNS = {"the full gloo/CPU matrix": ([], 90, 40), "--quick": (["--quick"], 10, None)}


def measure(rounds: int, report: Callable[[str], None]) -> list[Row]:
    """Time everything `rounds` times; call `report` with what is being done, in words."""
    seconds: dict[str, list[float]] = {name: [] for name in _RUNS}
    cells = {}
    spawn = []
    for number in range(rounds):
        spawn += launches(1, report, _RANKS)["spawn"]
        for name, (arguments, _, _) in _RUNS.items():
            report(f"{name}, round {number + 1} of {rounds}")
            cells[name] = _run(arguments, seconds[name])
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return rows(medians, cells, statistics.median(spawn))


def _run(arguments: list[str], seconds: list[float]) -> int:
    """Measure a matrix; append its seconds, and return the number of its cells on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "matrix.json")
        program = [sys.executable, "-m", "collectives", "matrix", "--backend", "gloo"]
        command = [*program, *arguments, "--json", str(file)]
        with timed(seconds):
            with process(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE):
                pass
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        return sum(cell["device"] == "cpu" for cell in cells)


def rows(seconds: dict[str, float], cells: dict[str, int], spawn: float) -> list[Row]:
    """The table, from each run's seconds and number of cells, and the seconds of a spawn."""
    table = []
    for name, (_, most, least) in _RUNS.items():
        count = cells[name]
        ratio = count * spawn / seconds[name]
        target = (f">= {least}x, " if least else "") + f"B < {most} s"
        met = "yes" if seconds[name] < most and ratio >= (least or 0) else "no"
        first = f"{count} times torch.multiprocessing.spawn of {_RANKS} ranks, {spawn:.2f} s each"
        second = f"{count} cells in {seconds[name]:.1f} s"
        table.append(Row(name, first, second, ratio, target, met))
    return table
