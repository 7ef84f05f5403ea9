"""How long an all_reduce took on an idle machine with two cores: no lesson, but data.

benchmarks/algorithms.py measured it with 4 ranks and with 2, and wrote measured.json beside this
file.
"""

import json
from pathlib import Path

FILE = Path(__file__).with_name("measured.json")
WORLDS = json.loads(FILE.read_text(encoding="utf-8"))


def where(ranks):
    """4 ranks on 2 cores."""
    return f"{ranks} ranks on {WORLDS[str(ranks)]['cores']} cores"


def times(ranks, *names):
    """For each of these algorithms or backends: (bytes, seconds) of each size."""
    found = WORLDS[str(ranks)]["all_reduce"]
    return {name: [(int(size), seconds[name]) for size, seconds in found.items()] for name in names}
