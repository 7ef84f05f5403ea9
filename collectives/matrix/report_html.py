"""A matrix as one HTML page that needs nothing else.

It has a table for each backend, filters, and the reason of every cell. A row is a form and a
reduction, a column a dtype. The page is report_page.html.
"""

from collections import Counter

import jinja2

from collectives.matrix.measured import MARKS, Matrix, Measured, by_column


def page(matrix: Matrix) -> str:
    """The whole page as text."""
    columns = by_column(matrix.cells)
    cells = [cell for column in columns.values() if _is_measured(column) for cell in column]
    counts = Counter(cell.state for cell in cells)
    # First "-", for calls without a tensor.
    dtypes = sorted(dict.fromkeys(map(_dtype, cells)), key=lambda dtype: dtype != "-")
    versions = {"torch": matrix.torch, "NCCL": matrix.nccl, "CUDA": matrix.cuda, "MPI": matrix.mpi}
    facts = [f"{word} {version}" for word, version in versions.items() if version]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("collectives.matrix", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report_page.html").render(
        matrix=matrix,
        facts=[*facts, matrix.platform],
        marks=MARKS,
        places=dict.fromkeys(f"{backend}/{device}" for backend, device, _ in columns),
        counts={state: counts[state] for state in MARKS if counts[state]},
        dtypes=dtypes,
        columns=columns,
        is_measured=_is_measured,
        by_row=_by_row,
    )


def _is_measured(column: list[Measured]) -> bool:
    return any(cell.was_tried for cell in column)


def _dtype(cell: Measured) -> str:
    return cell.dtype or "-"


def _by_row(cells: list[Measured]) -> dict[str, dict[tuple, dict[str, Measured]]]:
    """The cells of a table by collective, then by form and reduction, then by dtype."""
    groups: dict[str, dict[tuple, dict[str, Measured]]] = {}
    for cell in cells:
        row = groups.setdefault(cell.collective, {}).setdefault((cell.form, cell.op), {})
        row[_dtype(cell)] = cell
    return groups
