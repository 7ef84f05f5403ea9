"""Where a measured matrix is not as claimed (backends/claims.toml)."""

from collections.abc import Iterable
from typing import NamedTuple

from collectives.backends.claims import BROKEN, MISMATCHED, STATES, Claim, expected, table
from collectives.matrix.measured import Matrix, Measured
from collectives.semantics.cell import Cell
from collectives.words import counted

# So many cells are named after the first one; the others are counted.
_NAMED = 3

# What differences are called, in the order in which they are printed. `unclaimed`: the cell does
# not work, and no claim says so. `broken`: it is wrong, hangs or crashes on a backend without
# claims, and the text says which of these. `contradiction`: two claims disagree. `unprobed`: a
# claim is about no cell, so that nothing can prove it. `gone`, `new`: only one of two matrices has
# measured the cell.
KINDS = ("worse", "unclaimed", "broken", "better", "contradiction", "unprobed", "gone", "new")


class CellDifference(NamedTuple):
    """Some cells that are not as expected, or a fault in what is expected. `kind` is in KINDS."""

    kind: str
    text: str


def report(
    matrix: Matrix, claims: tuple[Claim, ...], probes: list[Cell] | None = None
) -> tuple[str, int]:
    """The differences as text, and an exit status: 1 if there are any."""
    if found := differences(matrix, claims, probes):
        no_claim = all(one.kind == "broken" for one in found)
        title = "neither right nor refused:" if no_claim else "not as claimed:"
        return "\n".join([title, *(f"  {text}" for _, text in found)]), 1
    columns = columns_of(claims)
    cells = [cell for cell in matrix.cells if cell.was_tried]
    if not any((cell.backend, cell.device) in columns for cell in cells):
        return "", 0
    return f"{counted(len(cells), 'cell')}: all as claimed", 0


def differences(
    matrix: Matrix, claims: tuple[Claim, ...] | None = None, probes: list[Cell] | None = None
) -> list[CellDifference]:
    """How a measured matrix differs from the claims; by default from our own.

    `probes` are the cells that a full run measures with this torch. If they are given, claims that
    are about none of them are differences too, except our own, which
    tests/backends/test_claims.py looks at. A run of some cells only cannot know that.
    """
    claims = table() if claims is None else claims
    columns = columns_of(claims)
    # One difference for each claim and state, or without a claim for each form and state. Of one
    # without any claims it is one for each detail and state, because a bug shows in many forms.
    groups: dict[tuple, list[Measured]] = {}
    faults: set[str] = set()
    for cell in matrix.cells:
        if not cell.was_tried:
            continue
        try:
            claim = expected(cell, matrix.torch, claims)
        except ValueError as error:
            faults.add(f"contradiction: {error}")
            continue
        has_claims = (cell.backend, cell.device) in columns
        alike = None if claim else cell.name if has_claims else cell.detail
        group = claim, alike, has_claims, cell.state
        groups.setdefault(group, []).append(cell)
    cell_differences = [CellDifference("contradiction", text) for text in sorted(faults)]
    for (claim, _, has_claims, state), cells in groups.items():
        kind, reason = _difference(claim, has_claims, state)
        if kind is not None:
            cell_differences.append(CellDifference(kind, _describe(kind, reason, cells)))
    ours = {*table()} if probes else ()
    cell_differences += [
        CellDifference("unprobed", f"unprobed: {text}")
        for text in claims_without_cells(
            [theirs for theirs in claims if theirs not in ours], probes or []
        )
    ]
    return in_order(cell_differences)


def columns_of(claims: Iterable[Claim]) -> set[tuple[str, str]]:
    """The backends, each with its device, that claims are about."""
    return {(claim.backend, claim.device) for claim in claims if claim.form}


def _difference(claim: Claim | None, has_claims: bool, state: str) -> tuple[str | None, str]:
    """The kind of difference from what is claimed, or from what goes without saying, and why."""
    if claim is not None:
        because = f", because {claim.reason}" if claim.reason else ""
        unproven = f" (read, and never run: {claim.read})" if claim.read else ""
        return compare(claim.state, state), f"; claimed: {claim.state}{because}{unproven}"
    if has_claims:
        return "unclaimed" if state != "works" else None, "; no claim says so"
    return "broken" if state in BROKEN else None, ""


def _describe(kind: str, reason: str, cells: list[Measured]) -> str:
    first, *rest = cells
    number = counted(len(cells), "cell")
    if kind == "broken":  # the state says how
        text = f"{first.state}, {number}: {first} ({first.detail})"
    else:
        text = f"{kind}, {number}: {first} {first.outcome}{reason}"
    if rest:
        text += f". Also: {'; '.join(map(str, rest[:_NAMED]))}"
    if len(rest) > _NAMED:
        text += f"; and {len(rest) - _NAMED} more"
    return text


def claims_without_cells(claims: Iterable[Claim], probes: list[Cell]) -> list[str]:
    """What in the claims is about no cell of the backends that are probed."""
    probed = {(cell.backend, cell.device) for cell in probes}
    texts = []
    for claim in claims:
        if not claim.form or (claim.backend, claim.device) not in probed:
            continue
        cells = [cell for cell in probes if claim.speaks_of(cell)]
        named = [form for form in claim.form if f":{MISMATCHED}" not in form]
        if named and not cells:
            texts.append(
                f"{claim} ({claim.source}) speaks of no cell: nothing can prove it; "
                "correct its names or take it out"
            )
            continue
        forms = {cell.form for cell in cells} | {cell.name for cell in cells}
        texts += [
            f"{claim} ({claim.source}) names the form {form!r}, of which there is no cell"
            for form in named
            if form not in forms
        ]
    return texts


def compare(expected: str, measured: str) -> str | None:
    """The kind of difference between two states; None if they are the same, or not measured."""
    if expected == measured:
        return None
    if expected in STATES and measured in STATES:
        return "better" if STATES.index(measured) < STATES.index(expected) else "worse"
    if expected in STATES:
        return "gone"
    return "new" if measured in STATES else None


def in_order(differences: list[CellDifference]) -> list[CellDifference]:
    return sorted(differences, key=lambda difference: KINDS.index(difference.kind))
