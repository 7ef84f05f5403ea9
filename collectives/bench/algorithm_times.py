"""The tables of `collectives bench algorithms`, in the terminal and in docs/algorithms.md.

`python -m collectives.bench.algorithm_times` writes the latter, from docs/algorithm_times.json.
"""

import json
import math
import statistics

from collectives.backends.by_hand.choice import SHARED_MEMORY
from collectives.bench.timing import Row
from collectives.lesson.make.generated_part import ROOT, Part

PART = Part("what an all_reduce takes", "collectives.bench.algorithm_times", "docs/algorithms.md")
MEASURED = ROOT / "docs/algorithm_times.json"

# What is timed beside the algorithms of by_hand.
_OTHERS = ("memcpy", "gloo", "mpi")

# How many times faster than gloo a step of training is to be.
_STEPS = {"DDP": 1, "FSDP2": 1.3}


def medians(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    return {
        what: {name: statistics.median(rounds) for name, rounds in by_name.items()}
        for what, by_name in found.items()
    }


def targets(ranks: int, nbytes: int) -> tuple[float, float, float]:
    """How many times faster an all_reduce is to be; 0 is no target.

    Through shared memory than gloo; over sockets than gloo; through shared memory than a copy of
    the tensor in every rank at the same time.
    """
    if ranks == 4:
        table = [(2**16, 8, 4), (2**20, 5, 2), (2**24, 2.5, 1), (math.inf, 2.5, 0.9)]
        shared, sockets = next(times for most, *times in table if nbytes <= most)
        return shared, sockets, 0
    return (3, 0, 0.67) if ranks == 2 and nbytes >= 2**24 else (0, 0, 0)


def rows(document: dict) -> list[Row]:
    """What is to be reached, and whether this run did."""
    found, n = [], document["ranks"]
    for nbytes, seconds in medians(document["all_reduce"]).items():
        size = int(nbytes)
        ours = [name for name in seconds if name not in _OTHERS]
        best = min((name for name in ours if name != SHARED_MEMORY), key=seconds.get)
        where = f"all_reduce, {n} ranks, {size_text(size)}"
        shared, sockets, copy = targets(n, size)
        if SHARED_MEMORY in seconds:
            found.append(_row(where, seconds, "gloo", SHARED_MEMORY, shared))
        found.append(_row(where, seconds, "gloo", best, sockets))
        if copy and SHARED_MEMORY in seconds:
            found.append(_row(where, seconds, "memcpy", SHARED_MEMORY, copy))
        if "mpi" in seconds:
            found.append(_row(where, seconds, "mpi", min(ours, key=seconds.get), 1))
    for what, seconds in medians(document["step"]).items():
        least = _STEPS[what.partition(",")[0]]
        found.append(_row(f"a step of {what}", seconds, "gloo", "by_hand", least))
    return found


def _row(what: str, seconds: dict[str, float], first: str, second: str, least: float) -> Row:
    ratio = seconds[first] / seconds[second]
    shown = [f"{name} {time_text(seconds[name])}" for name in (first, second)]
    met = "yes" if ratio >= least else "no"
    return Row(what, *shown, ratio, *((f">= {least}x", met) if least else ("-", "-")))


def table_rows(document: dict) -> list[list[str]]:
    """A row for each contender, a column for each size: its time, and how much faster than gloo."""
    found = medians(document["all_reduce"])
    lines = [["", *(size_text(int(size)) for size in found)]]
    for name in next(iter(found.values())):
        lines.append([name, *(_cell(one, name) for one in found.values())])
    return lines


def _cell(seconds: dict[str, float], name: str) -> str:
    ratio = "" if name in ("memcpy", "gloo") else f", {seconds['gloo'] / seconds[name]:.2g}x"
    return time_text(seconds[name]) + ratio


def curves(document: dict) -> dict[str, list[tuple[float, float]]]:
    """For the plot: seconds by bytes."""
    found = medians(document["all_reduce"])
    names = [name for name in next(iter(found.values())) if name != "memcpy"]
    return {name: [(int(size), one[name]) for size, one in found.items()] for name in names}


def measured(*names: str) -> dict[str, list[tuple[float, float]]]:
    """Seconds by bytes in the measurement that the documentation shows."""
    found = curves(json.loads(MEASURED.read_text(encoding="utf-8")))
    return {name: found[name] for name in names}


def size_text(size: int) -> str:
    unit, factor = next(
        (unit, factor)
        for unit, factor in (("MiB", 2**20), ("KiB", 2**10), ("B", 1))
        if size >= factor
    )
    return f"{size / factor:g} {unit}"


def time_text(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def markdown(document: dict) -> str:
    heads, *lines = table_rows(document)
    about = f"{document['machine']}, torch {document['torch']}, {document['ranks']} ranks"
    tables = [
        [heads, ["---"] * len(heads), *([f"`{name}`", *cells] for name, *cells in lines)],
        [["a step of training", "gloo", "by_hand", "ratio"], ["---"] * 4],
    ]
    for what, one in medians(document["step"]).items():
        cells = [time_text(one["gloo"]), time_text(one["by_hand"])]
        tables[1].append([what, *cells, f"{one['gloo'] / one['by_hand']:.3g}x"])
    texts = ["\n".join(f"| {' | '.join(line)} |" for line in lines) for lines in tables]
    return "\n\n".join([f"{about}, medians of {document['rounds']} rounds:", *texts])


if __name__ == "__main__":
    PART.write(markdown(json.loads(MEASURED.read_text(encoding="utf-8"))))
