"""The tables of claims in docs/backends.md, from claims.toml: in short and in full."""

from collections.abc import Iterable

from collectives.backends.claims import Claim, base, table
from collectives.semantics.calls import LESSONS
from collectives.words import runs
from tools import markdown

# How the short table counts the exceptions in each state.
_COUNTED = {"refuses": "refused", "wrong": "**wrong**", "crashes": "**crash**", "hangs": "**hang**"}

# The calls of those lessons that are not named after one call.
_CALLS = {"send_recv": ("send", "recv"), "isend_irecv": ("isend", "irecv")}

_Place = tuple[str, str]  # backend and device


def full(claims: tuple[Claim, ...] | None = None) -> str:
    """A row for each call, a column for each backend, and below them the numbered exceptions."""
    claims = claims or table()
    forms = list(dict.fromkeys(base(form) for claim in claims for form in claim.form))
    notes: dict[_Place, list[str]] = {}
    columns, first = [], 1
    for place in _places(claims):
        exceptions = [claim for form in forms for claim in _about(claims, form, place)[1]]
        notes[place] = list(dict.fromkeys(map(_note, exceptions)))
        numbers = {text: number for number, text in enumerate(notes[place], first)}
        columns.append([_cell(claims, form, place, numbers) for form in forms])
        first += len(numbers)
    rows = [[f"`{form}`", *cells] for form, *cells in zip(forms, *columns, strict=True)]
    lines, number = [markdown.table(["call", *_headings(claims, notes)], rows)], 0
    for place, texts in notes.items():
        lines += ["", f"### Exceptions on {', '.join(place)}", ""]
        for text in texts:
            number += 1
            lines.append(f"{number}. {text}")
    return "\n".join(lines)


def short(claims: tuple[Claim, ...] | None = None) -> str:
    """A row for each lesson about a collective: whether its calls work, and how many exceptions.

    A backend of which nobody claims that anything works is left out.
    """
    claims = claims or table()
    places = _places([claim for claim in claims if claim.state == "works"])
    rows = []
    for lesson in LESSONS:
        calls = _CALLS.get(lesson, (lesson,))
        cells = [_counts(claims, calls, place) for place in places]
        rows.append([", ".join(f"`{call}`" for call in calls), *cells])
    return markdown.table(["call", *_headings(claims, places)], rows)


def _places(claims: Iterable[Claim]) -> list[_Place]:
    return list(dict.fromkeys((claim.backend, claim.device) for claim in claims if claim.form))


def _headings(claims: tuple[Claim, ...], places: Iterable[_Place]) -> list[str]:
    """ "gloo, cpu", and with a remark if a claim about this place was read and never run."""
    read = {(claim.backend, claim.device) for claim in claims if claim.read}
    return [", ".join(place) + " (read, not run)" * (place in read) for place in places]


def _about(claims: Iterable[Claim], form: str, place: _Place) -> tuple[bool, list[Claim]]:
    """Whether the call as a whole is claimed to work, and the other claims about it."""
    found = [
        claim
        for claim in claims
        if (claim.backend, claim.device) == place and form in map(base, claim.form)
    ]
    whole = [claim for claim in found if form in claim.form and not claim.ops and not claim.dtypes]
    works = bool(whole) and whole[0].state == "works"
    return works, [claim for claim in found if claim.state != "works" or claim not in whole]


def _cell(claims: tuple[Claim, ...], form: str, place: _Place, numbers: dict[str, int]) -> str:
    """What is claimed of a call on a backend: "works, except 1-3, 5"."""
    works, exceptions = _about(claims, form, place)
    listed = ", ".join(runs(sorted({numbers[_note(claim)] for claim in exceptions})))
    if works:
        return f"works, except {listed}" if listed else "works"
    return listed or "-"


def _counts(claims: tuple[Claim, ...], calls: tuple[str, ...], place: _Place) -> str:
    """The same in short, for several calls together: "works; 2 refused, 1 **wrong**"."""
    works, found = zip(*(_about(claims, call, place) for call in calls), strict=True)
    states = list({_note(claim): claim.state for some in found for claim in some}.values())
    counts = [
        f"{states.count(state)} {word}" for state, word in _COUNTED.items() if state in states
    ]
    return "; ".join(filter(None, ("works" if all(works) else "", ", ".join(counts)))) or "-"


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
        + (f" (source: {claim.read})" if claim.read else "")
    )
