"""How long an all_reduce of 4 ranks took on an idle machine with two cores: no lesson, but data.

benchmarks/algorithms.py measured it, and wrote measured.json beside this file.
"""

import json
from pathlib import Path

FILE = Path(__file__).with_name("measured.json")


def _document():
    return json.loads(FILE.read_text(encoding="utf-8"))


def where():
    """4 ranks on 2 cores."""
    found = _document()
    return f"{found['ranks']} ranks on {found['machine'].split(', ')[1]}"


def times(*names):
    """For each of these algorithms or backends: (bytes, seconds) of each size."""
    found = _document()["all_reduce"]
    return {name: [(int(size), seconds[name]) for size, seconds in found.items()] for name in names}
