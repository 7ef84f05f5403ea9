"""A difference between what was measured and what a source expects: the claims (claimed.py), or a
recorded matrix (recorded.py)."""

from dataclasses import dataclass

from collectives.backends.claims import STATES, Claim

# What differences are called, in the order in which they are printed. `unclaimed`: the cell does
# not work, and no claim says so. `broken`: it is wrong, hangs or crashes on a backend without
# claims. `contradiction`: two claims disagree. `unprobed`: a claim is about no cell, so that
# nothing can prove it. `gone`, `new`: only one of two matrices has measured the cell.
KINDS = ("worse", "unclaimed", "broken", "better", "contradiction", "unprobed", "gone", "new")


@dataclass(frozen=True)
class Difference:
    """Some cells that are not as expected, or a fault in what is expected. `kind` is in KINDS.

    `claim` is what was claimed of the cells.
    """

    kind: str
    text: str
    cells: tuple[dict, ...] = ()
    claim: Claim | None = None

    def __str__(self) -> str:
        return self.text


def compare(expected: str, measured: str) -> str | None:
    """The kind of difference between two states; None if they are the same, or not measured."""
    if expected == measured:
        return None
    if expected in STATES and measured in STATES:
        return "better" if STATES.index(measured) < STATES.index(expected) else "worse"
    if expected in STATES:
        return "gone"
    return "new" if measured in STATES else None


def in_order(differences: list[Difference]) -> list[Difference]:
    return sorted(differences, key=lambda difference: KINDS.index(difference.kind))
