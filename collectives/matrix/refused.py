"""Why backends without claims refuse calls: each reason once, and what it says about the backend.

Such a backend may refuse whatever it cannot do. But a method that is missing, or that does not take
what torch passes, looks like a refusal too, so its author must see the reasons.
"""

import re
from collections.abc import Iterable

from collectives.backends.claims import Claim
from collectives.matrix import claimed, grid
from collectives.matrix.measured import Measured

_NUMBER = re.compile(r"0x[0-9a-f]+|\\x..|\d+")

# Errors that do not say what is wrong with a group that is written in Python, and what is.
_MEANINGS = {
    "No backend type associated with device type": (
        "the class of the group does not define the method that torch calls here"
    ),
    "ProcessGroup name not set": "the class of the group lacks setGroupName and getGroupName",
    r"TypeError: .*\(\) (got an unexpected|takes|missing)": (
        "torch passes other arguments than this method takes, which is a bug and no refusal"
    ),
}


def refusals(cells: Iterable[Measured], claims: Iterable[Claim]) -> list[tuple[str, str]]:
    """The cells that a backend without claims refuses, each with its reason."""
    columns = claimed.columns_of(claims)
    return [
        (grid.short_name(cell), cell.detail)
        for cell in cells
        if cell.state == "refuses" and (cell.backend, cell.device) not in columns
    ]


def by_reason(refusals: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each reason, with its first cell; below it all its calls, and what it means.

    Reasons that differ in numbers alone, as in addresses or ranks, are one.
    """
    groups: dict[str, tuple[str, list[str]]] = {}
    for cell, reason in refusals:
        groups.setdefault(_NUMBER.sub("", reason), (reason, []))[1].append(cell)
    lines = []
    for reason, names in groups.values():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"{names[0]}{more}: {reason}")
        calls = {re.split("[ :(]", name)[0]: None for name in names}
        lines += [f"  calls: {', '.join(calls)}"] if len(calls) > 1 else []
        lines += [f"  -> {text}" for words, text in _MEANINGS.items() if re.search(words, reason)]
    return lines
