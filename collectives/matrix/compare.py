"""Compare measured cells with what a source expects of them.

There are three sources: the claims (claimed.py), a recorded matrix (recorded.py) and PyTorch's
documentation (documented.py). Each turns what it says into `Expectation`s, and words the
differences in its own way.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from collectives.backends.claims import STATES

# What differences are called, in the order in which they are printed. `unclaimed`: the cell does
# not work, and no claim says so. `broken`: it is wrong, hangs or crashes on a backend without
# claims. `contradiction`: two claims disagree. `unprobed`: a claim is about no cell, so that
# nothing can prove it. `gone`, `new`: only one of two matrices has measured the cell.
# `undocumented`: the documentation says something else.
KINDS = (
    "worse",
    "unclaimed",
    "broken",
    "better",
    "contradiction",
    "unprobed",
    "gone",
    "new",
    "undocumented",
)


@dataclass(frozen=True)
class Expectation:
    """What a source expects of some cells: each of them is in one of these `states`.

    `kind` is what a difference is called; if it is empty, the states decide (see `change`). With
    `one_is_enough` the expectation holds as soon as one of the cells is in one of the states.
    """

    states: tuple[str, ...]
    kind: str = ""
    one_is_enough: bool = False

    def describe(self, kind: str, different: list[dict], cells: list[dict]) -> str:
        """One line about the cells that differ, which are some of `cells`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Difference:
    """Some cells that are not as expected, or a fault in what is expected. `kind` is in KINDS."""

    kind: str
    text: str
    cells: tuple[dict, ...] = ()
    expected: Expectation | None = None

    def __str__(self) -> str:
        return self.text


def compare(expected: Expectation, cells: list[dict]) -> Difference | None:
    """How measured cells differ from what is expected of them; None if they do not."""
    different = [cell for cell in cells if cell["state"] not in expected.states]
    if not different or (expected.one_is_enough and len(different) < len(cells)):
        return None
    kind = expected.kind or change(expected.states[0], different[0]["state"])
    if kind is None:
        return None
    text = expected.describe(kind, different, cells)
    return Difference(kind, text, tuple(different), expected)


def compare_all(expected: Iterable[tuple[Expectation, list[dict]]]) -> list[Difference]:
    """All differences, in the order of KINDS. Each expectation comes with the cells it is about."""
    found = [difference for pair in expected if (difference := compare(*pair))]
    return in_order(found)


def in_order(differences: list[Difference]) -> list[Difference]:
    return sorted(differences, key=lambda difference: KINDS.index(difference.kind))


def change(before: str, after: str) -> str | None:
    """What it is called when a state becomes another one; None if neither was measured."""
    if before in STATES and after in STATES:
        return "better" if STATES.index(after) < STATES.index(before) else "worse"
    if before in STATES:
        return "gone"
    return "new" if after in STATES else None
