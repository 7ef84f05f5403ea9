"""What `collectives matrix` does: select cells, measure them, print the tables, compare."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from collectives.backends import claims, imported
from collectives.backends.claims import BROKEN
from collectives.cli import terminal
from collectives.course import output_file
from collectives.course.console import console as make_console
from collectives.course.console import print_block, print_text
from collectives.launcher.arguments import check_timeout, world_size
from collectives.launcher.worker import launcher_worker
from collectives.matrix import claimed, grid, recorded, report_html, run, selection, supervise
from collectives.matrix.measured import by_column, is_measured, key
from collectives.semantics.cell import Cell


def execute(
    names: dict[str, list[str] | None],
    nproc: list[int] | None,
    quick: bool,
    timeout: float | None,
    json_file: Path | None,
    html_file: Path | None,
    claims_file: Path | None,
    against: str | None,
    modules: list[str],
) -> int:
    """Measure and report; the exit status. Under torchrun only rank 0 prints.

    `names`: those that `selection.select` takes. None where the command line says nothing.
    """
    prints = True
    try:
        worker = launcher_worker()
        prints = worker is None or worker.rank == 0
        # Refuse at once what would fail after a minute of measuring.
        if worker and worker.uses_mpi:
            raise ValueError(
                f"{worker.launcher} started this process: start the matrix by itself, or under "
                "torchrun or srun."
            )
        for size in nproc or ():
            world_size(size, worker)
        if timeout is not None:
            check_timeout(timeout)
        output_file.check(json_file, html_file)
        own_claims = claims.load(claims_file)
        before = None if against is None else _before(against)
        imported.import_modules(modules)
        sizes = [worker.world_size] if worker else nproc
        cells = selection.select(**names, world_sizes=sizes, quick=quick)
    except (ValueError, OSError) as error:
        if prints:
            print_text(f"collectives matrix: {error}", stderr=True)
        return 2
    answers = supervise.measure(worker, cells, timeout) if worker else run.measure(cells, timeout)
    found, interrupted = _measured(answers, cells, prints)
    if not prints:
        return 130 if interrupted else 0
    matrix = run.document(found)
    try:
        _print_tables(found)
    finally:  # a reader that has seen enough, like `head`, costs no file
        is_written = terminal.write_all(
            "collectives matrix",
            {
                json_file: lambda file: output_file.write(file, recorded.as_json(matrix)),
                html_file: lambda file: output_file.write(file, report_html.page(matrix)),
            },
        )
    if interrupted:
        print(f"\ninterrupted: {len(found)} of {len(cells)} cells were tried", file=sys.stderr)
        return 130
    probes = None
    if claims_file is not None:
        everything = selection.select(
            backend=names["backend"], device=names["device"], world_sizes=[*(nproc or ()), 2]
        )
        probes = list(map(dataclasses.asdict, everything))
    reports = [claimed.report(matrix, own_claims, probes)]
    if before is not None:
        is_selection = any((*names.values(), nproc, quick))
        reports.append(recorded.report(before, str(against), matrix, is_selection))
    for text, _ in reports:
        if text:
            print_text(f"\n{text}")
    if not is_written:
        return 2
    if any(status for _, status in reports):
        return 1
    return 0 if any(map(is_measured, matrix["cells"])) else 3


def _before(against: str) -> dict:
    """The matrix that --against names: the recorded one of a torch ("2.13"), or one in a file."""
    return recorded.named(against) or recorded.read(against)


def _measured(answers: Iterator[dict], cells: list[Cell], prints: bool) -> tuple[list[dict], bool]:
    """The measured cells in the order of `cells`, and whether Ctrl-C ended the run early."""
    if prints:
        answers = _show_progress(answers, len(cells))
    found, interrupted = [], False
    try:
        for answer in answers:
            found.append(answer)
    except KeyboardInterrupt:
        interrupted = True
    order = {key(vars(cell)): number for number, cell in enumerate(cells)}
    return sorted(found, key=lambda cell: order[key(cell)]), interrupted


def _show_progress(cells: Iterator[dict], count: int) -> Iterator[dict]:
    """Pass the cells on as they are measured; show how many there are, and each broken one."""
    console = make_console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    is_quiet = not console.is_terminal
    broken = 0
    with Progress(*columns, console=console, transient=True, disable=is_quiet) as progress:
        task = progress.add_task("cells", total=count)
        for cell in cells:
            if cell["state"] in BROKEN:
                broken += 1
                text = f"{escape(grid.short_name(cell))}: {escape(cell['detail'])}"
                console.print(f"[red]{cell['state']}[/] {text}", soft_wrap=True)
            text = f"cells, {broken} bad" if broken else "cells"
            progress.update(task, advance=1, description=text)
            yield cell


def _print_tables(cells: list[dict]) -> None:
    """Print the tables of each column, and of a column that is not here the reason."""
    for (backend, device, ranks), column in by_column(cells).items():
        if not any(map(is_measured, column)):
            reasons = "; ".join(sorted({cell["detail"] for cell in column}))
            print_text(f"\n{backend}/{device}: unavailable here: {reasons}")
            continue
        for table in (grid.by_dtype(column), grid.by_variant(column)):
            if table is not None:
                table.title = f"\n{backend}/{device}, {ranks} ranks"
                table.title_justify = "left"
                print_block(table)
    print()
    make_console().print(grid.legend())
    print_text("\n".join([*grid.reasons(cells), grid.counts(cells)]))
