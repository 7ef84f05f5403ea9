"""The tables and the plot of docs/algorithms.md: what the algorithms send, how long they take."""

import json
from collections.abc import Sequence
from pathlib import Path

from collectives.algorithms import count, table
from tools import markdown

# What benchmarks/algorithms.py wrote on an idle machine. The lessons show these times, too.
MEASURED = Path(__file__).parents[1] / "lessons" / "algorithms" / "measured.json"

# Ranks and bytes of the first table.
RANKS, NBYTES = 8, 16 * 2**20


def sent() -> str:
    rows = []
    for collective, known in table.ALGORITHMS.items():
        for name in known:
            found = count.traffic(collective, name, RANKS, NBYTES)
            share = "-" if collective == "barrier" else f"{found.busiest() / NBYTES:.4g}"
            messages = max(found.messages), sum(found.messages)
            rows.append([f"`{collective}`", f"`{name}`", found.steps, *messages, share])
    heads = ["call", "algorithm", "steps", "messages of a rank", "of all", "busiest rank's share"]
    return markdown.table(heads, rows)


def times() -> str:
    """For each world: a row for each contender, a column for each size; a row for each training."""
    return "\n\n".join(_times(n, world) for n, world in _worlds().items())


def _worlds() -> dict[str, dict]:
    return json.loads(MEASURED.read_text(encoding="utf-8"))


def _times(n: str, world: dict) -> str:
    found = world["all_reduce"]
    calls = markdown.table(
        ["", *(_size(int(size)) for size in found)],
        [
            [f"`{name}`", *(_cell(seconds, name) for seconds in found.values())]
            for name in next(iter(found.values()))
        ],
    )
    training = markdown.table(
        ["a step of training", "gloo", "by_hand", "ratio"],
        [
            [what, _ms(one["gloo"]), _ms(one["by_hand"]), f"{one['gloo'] / one['by_hand']:.3g}x"]
            for what, one in world["step"].items()
        ],
    )
    about = f"{n} ranks on {world['machine']}, {world['cores']} cores, torch {world['torch']}"
    return f"{about}, medians of {world['rounds']} rounds:\n\n{calls}\n\n{training}"


def times_svg() -> str:
    """The curves of the world that was measured first."""
    from collectives.pictures import picture
    from collectives.pictures.crossings import Times

    n, world = next(iter(_worlds().items()))
    found = world["all_reduce"]
    curves: dict[str, Sequence[tuple[float, float]]] = {
        name: [(int(size), seconds[name]) for size, seconds in found.items()]
        for name in next(iter(found.values()))
        if name != "memcpy"
    }
    where = f"{n} ranks on {world['cores']} cores"
    times = Times(curves, where=where)
    return picture.svg(times.draw(times.shows, [])).decode()


def _cell(seconds: dict[str, float], name: str) -> str:
    ratio = "" if name in ("memcpy", "gloo") else f", {seconds['gloo'] / seconds[name]:.2g}x"
    return _ms(seconds[name]) + ratio


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _size(nbytes: int) -> str:
    known = (("MiB", 2**20), ("KiB", 2**10), ("B", 1))
    unit, factor = next((unit, factor) for unit, factor in known if nbytes >= factor)
    return f"{nbytes / factor:g} {unit}"
