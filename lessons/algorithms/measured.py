"""How long an all_reduce of 4 ranks took on an idle machine with two cores: no lesson, but data.

benchmarks/algorithms.py measured it, and wrote measured.json beside this file.
"""

import json
from pathlib import Path

FILE = Path(__file__).with_name("measured.json")


def times(*names):
    """For each of these algorithms or backends: (bytes, seconds) of each size."""
    found = json.loads(FILE.read_text(encoding="utf-8"))["all_reduce"]
    return {name: [(int(size), seconds[name]) for size, seconds in found.items()] for name in names}
