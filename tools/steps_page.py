"""One HTML page on which people step through every algorithm, for 1 to 16 ranks.

It needs nothing else. The messages come from the schedules, by the interpreter `lockstep`; the
page's script moves the pieces. The page's frame, style and script are in steps_page.html.
"""

import itertools
import json
import sys
from pathlib import Path

from collectives.algorithms import hierarchical, table
from collectives.algorithms.count import array_bytes
from collectives.algorithms.lockstep import Message, messages

MOST_RANKS = 16

# Bytes of the full array: a chain and a double tree cut it in four chunks.
NBYTES = 2**20


def page() -> str:
    """The whole page as text."""
    frame = Path(__file__).with_name("steps_page.html")
    data = json.dumps(_data(), separators=(",", ":")).replace("</", "<\\/")
    return frame.read_text(encoding="utf-8").replace("{{data}}", data)


def per_machine(n: int) -> int:
    """How many ranks share a machine, for the hierarchical algorithm: 4 of 16, 2 of 6, 1 of 5."""
    return max(ranks for ranks in range(1, n + 1) if n % ranks == 0 and ranks**2 <= n)


def machines(n: int) -> list[list[int]]:
    """The ranks of each machine, as the hierarchical algorithm places them."""
    per_node = per_machine(n)
    grouped = itertools.groupby(range(n), lambda rank: hierarchical.machine_of(rank, per_node))
    return [list(ranks) for _, ranks in grouped]


def pieces(collective: str, name: str, n: int) -> int:
    """How many pieces the array has. In an all_to_all a rank holds twice as many."""
    return table.find(collective, name, n).pieces(
        n, array_bytes(collective, NBYTES), per_machine(n)
    )


def steps(collective: str, name: str, n: int) -> list[list[Message]]:
    """The messages of each step. A message to oneself is a copy."""
    algorithm, per_node = table.find(collective, name, n), per_machine(n)
    count = pieces(collective, name, n)
    held = 2 * count if collective == "all_to_all" else count
    return messages(lambda rank: algorithm.steps(rank, n, count, per_node), n, held)


def _data() -> dict:
    """By collective and algorithm: a sentence about it, and by number of ranks its steps."""
    return {
        collective: {name: _algorithm(collective, name) for name in known}
        for collective, known in table.ALGORITHMS.items()
    }


def _algorithm(collective: str, name: str) -> dict:
    module = sys.modules[table.ALGORITHMS[collective][name].schedule.__module__]
    sizes = [n for n in range(1, MOST_RANKS + 1) if name in table.names(collective, n)]
    return {
        "about": " ".join((module.__doc__ or "").partition("\n\n")[0].split()),
        "bytes": array_bytes(collective, NBYTES),
        "ranks": {n: _run(collective, name, n) for n in sizes},
    }


def _run(collective: str, name: str, n: int) -> dict:
    found = {
        "pieces": pieces(collective, name, n),
        "steps": [list(map(_short, step)) for step in steps(collective, name, n)],
    }
    return found | ({"machines": machines(n)} if name == "hierarchical" else {})


def _short(message: Message) -> list:
    """[source, to, 1 if it is added, pieces], and the pieces' new places if they are others."""
    found = [message.source, message.to, int(message.reduce), message.sent]
    return found if message.sent == message.received else [*found, message.received]
