"""Where a measured matrix is not as claimed (backends/claims.toml)."""

from dataclasses import dataclass

from collectives.backends.claims import BROKEN, STATES, Claim, base, expected, table
from collectives.matrix.compare import Difference, Expectation, compare_all, in_order
from collectives.matrix.measured import is_measured, name, outcome

# So many cells are named after the first one; the others are counted.
_NAMED = 3


@dataclass(frozen=True)
class Claimed(Expectation):
    """What a claim says of a cell, or, where `about` is the name of a form, what goes unsaid."""

    about: Claim | str = ""
    words: str = ""

    def describe(self, kind: str, different: list[dict], cells: list[dict]) -> str:
        first, *rest = different
        number = f"{len(different)} cell{'s' * bool(rest)}"
        text = f"{kind}, {number}: {name(first)} {outcome(first)}"
        if self.words:
            text += f"; {self.words}"
        if rest:
            text += f". Also: {'; '.join(map(name, rest[:_NAMED]))}"
        if len(rest) > _NAMED:
            text += f"; and {len(rest) - _NAMED} more"
        return text


def differences(
    matrix: dict, claims: tuple[Claim, ...] | None = None, probes: list[dict] | None = None
) -> list[Difference]:
    """How a measured matrix differs from the claims; by default from our own.

    `probes` are the cells that a full run measures with this torch. If they are given, claims that
    are about none of them are differences too. A run of some cells only cannot know that.
    """
    claims = table() if claims is None else claims
    claimed_places = {(claim.backend, claim.device) for claim in claims if claim.form}
    groups: dict[tuple[Claimed, str], list[dict]] = {}
    faults: dict[str, Difference] = {}
    for cell in filter(is_measured, matrix["cells"]):
        try:
            claim = expected(cell, matrix["torch"], claims)
        except ValueError as error:
            text = f"contradiction: {error}"
            faults[text] = Difference("contradiction", text)
            continue
        has_claims = (cell["backend"], cell["device"]) in claimed_places
        # One difference for each claim and state; without a claim, for each form and state.
        group = _expectation(cell, claim, has_claims), cell["state"]
        groups.setdefault(group, []).append(cell)
    found = compare_all((claimed, cells) for (claimed, _), cells in groups.items())
    found += faults.values()
    found += [Difference("unprobed", f"unprobed: {text}") for text in _idle(claims, probes or [])]
    return in_order(found)


def _expectation(cell: dict, claim: Claim | None, has_claims: bool) -> Claimed:
    if claim is not None:
        because = f", because {claim.reason}" if claim.reason else ""
        return Claimed((claim.state,), about=claim, words=f"claimed: {claim.state}{because}")
    form = base(cell["form"])
    if has_claims:
        return Claimed(("works",), "unclaimed", about=form, words="no claim says so")
    fine = tuple(state for state in STATES if state not in BROKEN)
    return Claimed(fine, "broken", about=form)


def _idle(claims: tuple[Claim, ...], probes: list[dict]) -> list[str]:
    """What in the claims is about no cell of the backends that are probed."""
    probed = {(cell["backend"], cell["device"]) for cell in probes}
    found = []
    for claim in claims:
        if not claim.form or (claim.backend, claim.device) not in probed:
            continue
        cells = [cell for cell in probes if claim.speaks_of(cell)]
        if not cells:
            found.append(
                f"{claim} ({claim.source}) speaks of no cell: nothing can prove it; "
                "correct its names or take it out"
            )
            continue
        forms = {cell["form"] for cell in cells} | {base(cell["form"]) for cell in cells}
        found += [
            f"{claim} ({claim.source}) names the form {form!r}, of which there is no cell"
            for form in claim.form
            if form not in forms
        ]
    return found
