"""The README's table of claims, from claims.toml. `python -m collectives.lesson.make.claims_table` brings it up to date."""

import sys
from pathlib import Path

from collectives.backends.claims import Claim, base, holds, table
from collectives.lesson.make.generated_part import Part

PART = Part("claims", "collectives.lesson.make.claims_table")

# From the oldest torch that this package runs on (pyproject.toml) to one that is far off: what older ones did concerns no reader.
_VERSIONS = [f"2.{minor}" for minor in range(11, 40)]


def markdown(claims: tuple[Claim, ...] | None = None) -> str:
    """A row for each form, a column for each backend; every exception has a number, and its reason below."""
    claims = tuple(
        claim
        for claim in (table() if claims is None else claims)
        if claim.form and _is_of_today(claim)
    )
    places = list(dict.fromkeys((claim.backend, claim.device) for claim in claims))
    forms = list(dict.fromkeys(base(form) for claim in claims for form in claim.form))
    notes: dict[str, int] = {}
    rows = [
        [f"`{form}`", *(_place(claims, form, place, notes) for place in places)] for form in forms
    ]
    head = ["call", *(f"{backend}, {device}" for backend, device in places)]
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join([*lines, "", *(f"{number}. {text}" for text, number in notes.items())])


def _is_of_today(claim: Claim) -> bool:
    return any(holds(claim.torch, version) for version in _VERSIONS)


def _place(
    claims: tuple[Claim, ...], form: str, place: tuple[str, str], notes: dict[str, int]
) -> str:
    """What is claimed of a form on a backend: "works, except 1 2"."""
    its = [
        claim
        for claim in claims
        if (claim.backend, claim.device) == place and form in {base(one) for one in claim.form}
    ]
    general = [claim for claim in its if not claim.ops and not claim.dtypes and form in claim.form]
    numbers = []
    for claim in its:
        if claim not in general or claim.state != "works":
            numbers.append(notes.setdefault(_note(claim), len(notes) + 1))
    state = general[0].state if general else ""
    exceptions = ", ".join(map(str, sorted(numbers)))
    return (
        ", except ".join(filter(None, (state, exceptions)))
        if state == "works"
        else exceptions or state or "-"
    )


def _note(claim: Claim) -> str:
    """ "**refuses** AVG for int8, bool: reason"."""
    variants = list(dict.fromkeys(form.partition(":")[2] for form in claim.form if ":" in form))
    whom = " for ".join(", ".join(names) for names in (variants, claim.ops, claim.dtypes) if names)
    limits = [
        f"{word} {limit}"
        for word, limit in (("torch", claim.torch), ("ranks", claim.world_size))
        if limit
    ]
    return (
        f"**{claim.state}** {whom}".rstrip()
        + (f" ({', '.join(limits)})" if limits else "")
        + (f": {claim.reason}" if claim.reason else "")
    )


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    path.write_text(PART.updated(path.read_text(encoding="utf-8"), markdown()), encoding="utf-8")
