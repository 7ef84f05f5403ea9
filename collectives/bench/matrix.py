"""What the matrix costs on gloo, in full and `--quick`, against torch.multiprocessing.spawn for each cell."""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from collectives.bench.launch import launches
from collectives.bench.timing import Row, process, timed

# As many ranks as a cell has.
_RANKS = 2

# The selections that are measured: arguments of `collectives matrix`, the most seconds they may take, the least ratio.
_RUNS = {"the full gloo/CPU matrix": ([], 90, 40), "--quick": (["--quick"], 10, None)}


def measure(rounds: int, tell: Callable[[str], None]) -> list[Row]:
    """Time everything `rounds` times; `tell` hears, in words, what is being done."""
    seconds: dict[str, list[float]] = {name: [] for name in _RUNS}
    cells = {}
    spawn = []
    for number in range(rounds):
        spawn += launches(1, tell, _RANKS)["spawn"]
        for name, (arguments, _, _) in _RUNS.items():
            tell(f"{name}, round {number + 1} of {rounds}")
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "matrix.json")
                command = [
                    sys.executable,
                    "-m",
                    "collectives",
                    "matrix",
                    "--backend",
                    "gloo",
                    *arguments,
                    "--json",
                    str(file),
                ]
                with (
                    timed(seconds[name]),
                    process(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE),
                ):
                    pass
                cells[name] = sum(
                    cell["device"] == "cpu"
                    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]
                )
    return rows(
        {name: statistics.median(values) for name, values in seconds.items()},
        cells,
        statistics.median(spawn),
    )


def rows(seconds: dict[str, float], cells: dict[str, int], spawn: float) -> list[Row]:
    """The table, from the seconds and the number of cells of each run, and the seconds that spawn takes for one cell."""
    table = []
    for name, (_, most, least) in _RUNS.items():
        ratio = cells[name] * spawn / seconds[name]
        target = (f">= {least}x, " if least else "") + f"B < {most} s"
        met = seconds[name] < most and ratio >= (least or 0)
        first = (
            f"{cells[name]} times torch.multiprocessing.spawn of {_RANKS} ranks, {spawn:.2f} s each"
        )
        table.append(
            Row(
                name,
                first,
                f"{cells[name]} cells in {seconds[name]:.1f} s",
                ratio,
                target,
                "yes" if met else "no",
            )
        )
    return table
