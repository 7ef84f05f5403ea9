"""The table of nccl-tests: its columns, as text, CSV and JSON.

The definitions are those of nccl-tests' doc/PERFORMANCE.md and src/*.cu.
"""

import csv
import io
import statistics
from dataclasses import asdict, dataclass

from collectives.algorithms.count import bus_factor

PLACES = ("out-of-place", "in-place")

# nccl-tests has names of its own for these.
TYPES = {"float16": "half", "float32": "float", "float64": "double"}
OPS = {"PRODUCT": "prod", "PREMUL_SUM": "mulsum"}

# Here each rank gives or gets one piece, and the size is that of all pieces.
_IN_PIECES = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")

_COLUMNS = ("size", "count", "type", "redop", "root")
_LINE = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}" + "  {:>7}  {:>6}  {:>6}  {:>6}" * 2
_FIGURES = ("time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong")


@dataclass(frozen=True)
class Figures:
    """`time` in microseconds: the mean of all ranks. Bandwidths in GB/s, with 10**9 bytes a GB.

    `wrong` counts the wrong elements on all ranks.
    """

    time: float
    algbw: float
    busbw: float
    wrong: int


@dataclass(frozen=True)
class Row:
    """`size`: bytes of the whole array. `count`: elements that a rank hands to the call.

    `root` is -1 where a call has none, `redop` "none" where it does not reduce. `figures` are by
    place; a form that torch.distributed does not have is left out.
    """

    collective: str
    size: int
    count: int
    type: str
    redop: str
    root: int
    figures: dict[str, Figures]


def elements(collective: str, nbytes: int, itemsize: int, n: int) -> int:
    """The count of a row that is to have `nbytes` bytes.

    A piece is a multiple of 16 bytes: so an array that is too short has none.
    """
    count = nbytes // itemsize
    if collective not in _IN_PIECES:
        return count
    aligned = max(1, 16 // itemsize)
    return count // n // aligned * aligned


def size(collective: str, count: int, itemsize: int, n: int) -> int:
    """The bytes of the whole array: nccl-tests' size, and what its bandwidths are computed from."""
    return count * itemsize * (n if collective in _IN_PIECES else 1)


def figures(collective: str, nbytes: int, n: int, seconds: float, wrong: int) -> Figures:
    algbw = nbytes / seconds / 1e9
    return Figures(seconds * 1e6, algbw, algbw * bus_factor(collective, n), wrong)


def text(rows: list[Row], absent: dict[str, str]) -> str:
    """The rows of one collective. `absent`: why a form is not there, by place."""
    places = "".join(f"{place:^33}" for place in PLACES)
    heads = [*_COLUMNS, *("time", "algbw", "busbw", "#wrong") * 2]
    units = ["(B)", "(elements)", "", "", "", *("(us)", "(GB/s)", "(GB/s)", "") * 2]
    lines = [f"# {'':>50}{places}", *(f"#{_LINE.format(*words)[1:]}" for words in (heads, units))]
    lines += [_LINE.format(*_cells(row)) for row in rows]
    lines += [f"# {place}: N/A, because {reason}" for place, reason in absent.items()]
    if any(row.count == 0 for row in rows):
        lines.append("# size 0: as in nccl-tests, a rank's piece is a multiple of 16 bytes")
    # As in nccl-tests, the mean of all rows, in both places.
    average = statistics.fmean(one.busbw for row in rows for one in row.figures.values())
    lines.append(f"# average bus bandwidth: {average:.4g} GB/s")
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: Row) -> list[object]:
    cells = [getattr(row, name) for name in _COLUMNS]
    for place in PLACES:
        if (one := row.figures.get(place)) is None:
            cells += ["N/A"] * 4
        else:
            digits = 0 if one.time >= 1e4 else 1 if one.time >= 100 else 2
            time = f"{one.time:.{digits}f}"
            cells += [time, f"{one.algbw:.2f}", f"{one.busbw:.2f}", one.wrong]
    return cells


def csv_text(rows: list[Row]) -> str:
    """A line for each row. A form that is not there leaves its cells empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = [f"{place} {name}" for place in PLACES for name in _FIGURES]
    writer.writerow(["collective", *_COLUMNS, *heads])
    for row in rows:
        cells = [getattr(row, name) for name in _COLUMNS]
        for place in PLACES:
            one = row.figures.get(place)
            cells += asdict(one).values() if one else [None] * len(_FIGURES)
        writer.writerow([row.collective, *cells])
    return out.getvalue()
