"""Where a measured matrix is not as claimed: claims that do not hold (better or worse) or are idle, and cells without a claim."""

from dataclasses import dataclass

from collectives.backends.claims import BROKEN, Claim, base, expected, table
from collectives.matrix.recorded import UNAVAILABLE, name, told, verdict


@dataclass(frozen=True)
class Finding:
    """What one claim, or the lack of one, got wrong.

    `kind` is worse or better (than `claim`), unclaimed (a cell does not work, and no claim says so), broken (wrong, hangs or
    crashes, for a backend of which nothing is claimed), contradiction (of two claims), or unprobed (a claim that speaks of no cell,
    so that nothing can prove it).
    """

    kind: str
    cells: tuple[dict, ...] = ()
    claim: Claim | None = None
    words: str = ""

    def __str__(self) -> str:
        if not self.cells:
            return f"{self.kind}: {self.words}"
        first, count = self.cells[0], len(self.cells)
        number = "1 cell" if count == 1 else f"{count} cells"
        head = f"{self.kind}, {number}: {name(first)} {told(first)}"
        return (
            head
            + (f"; {self.words}" if self.words else "")
            + (f". Also: {_list(self.cells[1:])}" if count > 1 else "")
        )


def judge(
    matrix: dict, claims: tuple[Claim, ...] | None = None, probes: list[dict] | None = None
) -> list[Finding]:
    """All findings of a measured matrix, worse ones first; an empty list means that everything is as claimed.

    `probes` are the cells that a full run would measure on this machine's torch: with them, claims (and forms named in claims) that
    speak of no cell are found. Without them, as for a run of some cells only, that cannot be known.
    """
    claims = table() if claims is None else claims
    claimed_of = {(claim.backend, claim.device) for claim in claims if claim.form}
    groups: dict[tuple, list[dict]] = {}
    contradictions = []
    for cell in matrix["cells"]:
        if cell["state"] == UNAVAILABLE:
            continue
        try:
            claim = expected(cell, matrix["torch"], claims)
        except ValueError as error:
            contradictions.append(Finding("contradiction", words=str(error)))
            continue
        if kind := _kind(cell, claim, (cell["backend"], cell["device"]) in claimed_of):
            # One finding for each claim and what was found instead; without a claim, for each form and state.
            groups.setdefault((kind, claim or base(cell["form"]), cell["state"]), []).append(cell)
    found = [_finding(kind, claim, cells) for (kind, claim, _), cells in groups.items()]
    found += dict.fromkeys(contradictions)
    found += (
        []
        if probes is None
        else [Finding("unprobed", words=words) for words in _idle(claims, probes)]
    )
    order = ("worse", "unclaimed", "broken", "better", "contradiction", "unprobed")
    return sorted(found, key=lambda finding: order.index(finding.kind))


def _kind(cell: dict, claim: Claim | None, has_claims: bool) -> str | None:
    if claim is not None:
        return verdict(claim.state, cell["state"])
    if has_claims:
        return None if cell["state"] == "works" else "unclaimed"
    return "broken" if cell["state"] in BROKEN else None


def _finding(kind: str, claim: Claim | str, cells: list[dict]) -> Finding:
    if isinstance(claim, str):
        return Finding(kind, tuple(cells), words="no claim says so" if kind == "unclaimed" else "")
    words = f"claimed: {claim.state}" + (f", because {claim.reason}" if claim.reason else "")
    return Finding(kind, tuple(cells), claim, words)


def _idle(claims: tuple[Claim, ...], probes: list[dict]) -> list[str]:
    """What in the claims speaks of no cell, for the backends that are probed."""
    probed = {(cell["backend"], cell["device"]) for cell in probes}
    found = []
    for claim in claims:
        if not claim.form or (claim.backend, claim.device) not in probed:
            continue
        cells = [cell for cell in probes if claim.speaks_of(cell)]
        if not cells:
            found.append(
                f"{claim} ({claim.source}) speaks of no cell: nothing can prove it; correct its names or take it out"
            )
            continue
        forms = {cell["form"] for cell in cells} | {base(cell["form"]) for cell in cells}
        found += [
            f"{claim} ({claim.source}) names the form {form!r}, of which there is no cell"
            for form in claim.form
            if form not in forms
        ]
    return found


def _list(cells: tuple[dict, ...], most: int = 3) -> str:
    words = [name(cell) for cell in cells[:most]]
    return "; ".join(words) + (f"; and {len(cells) - most} more" if len(cells) > most else "")
