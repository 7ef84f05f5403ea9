"""What the flags of `collectives matrix` do with what was measured: --html, --claims and --against.

Each function takes the matrix (the object that --json writes) and returns what is to be printed, and its part of the exit status:
0, or 1 for something that is not as it should be. Files that cannot be read raise ValueError.
"""

from pathlib import Path

from collectives.backends.claims import Claim, load
from collectives.matrix import documented, history, recorded, report_html
from collectives.matrix.findings import judge
from collectives.matrix.recorded import UNAVAILABLE

# So many cells that came or went are named; the others are counted.
_MOST = 20


def html(matrix: dict, path: Path) -> tuple[str, int]:
    """Write the page."""
    try:
        path.write_text(report_html.page(matrix, history.matrices()), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}.") from None
    return "", 0


def claims(
    matrix: dict, extra: Path | None = None, probes: list[dict] | None = None
) -> tuple[str, int]:
    """Compare with the claims, ours and those in `extra`. `probes` are all cells that a run without selection would measure."""
    table = load(extra)
    findings = judge(matrix, table, probes)
    measured = sum(cell["state"] != UNAVAILABLE for cell in matrix["cells"])
    if not findings:
        return f"{_count(measured, 'cell')}: all as claimed" if _speak(table, matrix) else "", 0
    return "\n".join(["not as claimed:", *(f"  {finding}" for finding in findings)]), 1


def other(against: str) -> dict | None:
    """What --against names: the recorded matrix of a version ("2.13"), or one in a file; None for "docs"."""
    if against == "docs":
        return None
    return history.named(against) or recorded.read(against)


def against(matrix: dict, name: str, selected: bool = False) -> tuple[str, int]:
    """Compare with what `name` means (see `other`). Only a cell that got better or worse than recorded counts for the status.

    `selected` says that some cells were left out on purpose: then none is called gone.
    """
    before = other(name)
    if before is None:
        return _against_docs(matrix)
    found = [
        one for one in recorded.compare(before, matrix) if not (selected and one.kind == "gone")
    ]
    lines = [f"against {name} (torch {before['torch']}):"]
    for kind in ("worse", "better", "gone", "new"):
        its = [difference for difference in found if difference.kind == kind]
        shown = its if kind in ("worse", "better") else its[:_MOST]
        lines += [f"  {difference}" for difference in shown]
        if len(its) > len(shown):
            lines.append(f"  {kind}: {len(its) - len(shown)} more")
    if not found:
        lines.append("  no cell differs")
    return "\n".join(lines), int(
        any(difference.kind in ("worse", "better") for difference in found)
    )


def _against_docs(matrix: dict) -> tuple[str, int]:
    """The documentation is not ours to fail by: differences are told, and the status stays 0."""
    places = dict.fromkeys(
        (cell["backend"], cell["device"])
        for cell in matrix["cells"]
        if cell["state"] != UNAVAILABLE
    )
    found = documented.against_docs(matrix, documented.try_calls(list(places)))
    links = [f"  {table.name}: {table.link}" for table in documented.tables()]
    head = f"against PyTorch's documentation: {_count(len(found), 'difference')}"
    return "\n".join([head, *(f"  {difference}" for difference in found), *links]), 0


def _speak(table: tuple[Claim, ...], matrix: dict) -> bool:
    """Whether anything is claimed of the backends that were measured."""
    measured = {
        (cell["backend"], cell["device"])
        for cell in matrix["cells"]
        if cell["state"] != UNAVAILABLE
    }
    return any(claim.form and (claim.backend, claim.device) in measured for claim in table)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
