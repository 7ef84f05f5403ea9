"""What the flags of `collectives matrix` do with a measured matrix: --html, --claims, --against.

Each function takes the matrix (the object that --json writes). It returns the text to print and
an exit status: 0, or 1 for something that is not as it should be. ValueError: a file cannot be read
or written.
"""

from pathlib import Path

from collectives.backends.claims import load
from collectives.matrix import claimed, documented, history, recorded, report_html
from collectives.matrix.measured import is_measured

# So many cells that are new or gone are named; the others are counted.
_NAMED = 20


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
    """Compare with the claims, ours and those in `extra`.

    `probes` are all cells that a run without a selection measures.
    """
    table = load(extra)
    if differences := claimed.differences(matrix, table, probes):
        return "\n".join(["not as claimed:", *(f"  {found}" for found in differences)]), 1
    claimed_places = {(claim.backend, claim.device) for claim in table if claim.form}
    cells = list(filter(is_measured, matrix["cells"]))
    if claimed_places.isdisjoint(_places(cells)):
        return "", 0
    return f"{_count(len(cells), 'cell')}: all as claimed", 0


def other(against: str) -> dict | None:
    """The matrix that --against names; None for "docs".

    That is the recorded one of a version of torch ("2.13"), or one in a file.
    """
    if against == "docs":
        return None
    return history.named(against) or recorded.read(against)


def against(matrix: dict, name: str, selected: bool = False) -> tuple[str, int]:
    """Compare with what `name` means (see `other`).

    Only a cell that is better or worse than recorded makes the status 1. `selected` says that some
    cells were left out on purpose: then none is called gone.
    """
    before = other(name)
    if before is None:
        return _against_docs(matrix)
    found = recorded.differences(before, matrix)
    lines = [f"against {name} (torch {before['torch']}):"]
    by_kind = {kind: [] for kind in ("worse", "better", "gone", "new")}
    for difference in found:
        by_kind[difference.kind].append(difference)
    if selected:
        by_kind["gone"] = []
    for kind, differences in by_kind.items():
        shown = differences if kind in ("worse", "better") else differences[:_NAMED]
        lines += [f"  {difference}" for difference in shown]
        if more := len(differences) - len(shown):
            lines.append(f"  {kind}: {more} more")
    if not any(by_kind.values()):
        lines.append("  no cell differs")
    return "\n".join(lines), int(bool(by_kind["worse"] or by_kind["better"]))


def _against_docs(matrix: dict) -> tuple[str, int]:
    """Print how the documentation differs. It is not ours to fail by: the status stays 0."""
    places = _places(filter(is_measured, matrix["cells"]))
    found = documented.differences(matrix, documented.try_calls(places))
    links = [f"  {table.name}: {table.link}" for table in documented.tables()]
    head = f"against PyTorch's documentation: {_count(len(found), 'difference')}"
    return "\n".join([head, *(f"  {difference}" for difference in found), *links]), 0


def _places(cells) -> list[tuple[str, str]]:
    """The backends and devices of the cells, each once."""
    return list(dict.fromkeys((cell["backend"], cell["device"]) for cell in cells))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
