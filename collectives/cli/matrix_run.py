"""What `collectives matrix` does: select cells, measure them, print the tables, compare."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from collectives.backends import availability, claims
from collectives.backends.claims import BROKEN
from collectives.cli import terminal
from collectives.course.console import check_files, print_text, write_file
from collectives.course.rich_console import console as make_console
from collectives.course.rich_console import print_block
from collectives.launcher.worker import Worker, is_alone_or_rank
from collectives.launcher.world import World, world_size
from collectives.matrix import (
    claimed,
    grid,
    recorded,
    refused,
    report_html,
    run,
    selection,
    supervise,
)
from collectives.matrix.measured import Matrix, Measured, by_column
from collectives.semantics.cell import Cell


@dataclass(frozen=True)
class MatrixRequest:
    """What the command line asks for; None where it says nothing."""

    # Which cells.
    backend: list[str] | None
    device: list[str] | None
    collective: list[str] | None
    dtype: list[str] | None
    op: list[str] | None
    nproc: list[int] | None
    quick: bool
    # How they are measured.
    timeout: float | None
    modules: list[str] | None
    # What becomes of the matrix.
    json_file: Path | None
    html_file: Path | None
    claims_file: Path | None
    against: str | None

    def check(self) -> Worker | None:
        """Refuse at once what would fail after a minute of measuring; the launcher's worker."""
        limit = World.timeout if self.timeout is None else self.timeout
        # The first world, which shows that ranks can start and meet on this machine.
        worker = World.chosen(backend="gloo", device="cpu", timeout=limit).worker
        if worker and worker.uses_mpi:
            raise ValueError(
                f"{worker.launcher} started this process: start the matrix by itself, or under "
                "torchrun or srun."
            )
        for size in self.nproc or ():
            world_size(size, worker)
        check_files(self.json_file, self.html_file)
        return worker

    def cells(self, worker: Worker | None) -> list[Cell]:
        return selection.select(
            backend=self.backend,
            device=self.device,
            collective=self.collective,
            dtype=self.dtype,
            op=self.op,
            world_sizes=[worker.world_size] if worker else self.nproc,
            quick=self.quick,
        )

    @property
    def is_selection(self) -> bool:
        names = self.backend, self.device, self.collective, self.dtype, self.op
        return any((*names, self.nproc, self.quick))

    def probes(self) -> list[Cell] | None:
        """What a full run would try, where a reader's own claims must be about some of it."""
        if self.claims_file is None:
            return None
        sizes = [*(self.nproc or ()), 2]
        return selection.select(backend=self.backend, device=self.device, world_sizes=sizes)


def execute(request: MatrixRequest) -> int:
    """Measure and report; the exit status. Under torchrun only rank 0 prints."""
    prints = is_alone_or_rank(0)
    try:
        worker = request.check()
        all_claims = claims.load(request.claims_file)
        before = None if request.against is None else _before(request.against)
        availability.import_modules(request.modules or ())
        cells = request.cells(worker)
    except (ValueError, OSError) as error:
        return terminal.failed("collectives matrix", error)
    if worker:
        answers = supervise.measure(worker, cells, request.timeout)
    else:
        answers = run.measure(cells, request.timeout)
    measured, interrupted = _measured(answers, cells, prints)
    if not prints:
        return 130 if interrupted else 0
    matrix = run.record(measured)
    is_written = _print_and_write(matrix, request)
    if interrupted:
        print(f"\ninterrupted: {len(measured)} of {len(cells)} cells were tried", file=sys.stderr)
        return 130
    if lines := refused.by_reason(refused.refusals(matrix.cells, all_claims)):
        print_text("\n  ".join(["\nrefused, by reason:", *lines]))
    reports = [claimed.report(matrix, all_claims, request.probes())]
    if before is not None:
        reports.append(recorded.report(before, str(request.against), matrix, request.is_selection))
    for text, _ in reports:
        if text:
            print_text(f"\n{text}")
    if not is_written:
        return 2
    if any(status for _, status in reports):
        return 1
    return 0 if any(cell.was_tried for cell in measured) else 3


def _before(against: str) -> Matrix:
    """The matrix that --against names: the recorded one of a torch ("2.13"), or one in a file."""
    return recorded.named(against) or recorded.read(against)


def _print_and_write(matrix: Matrix, request: MatrixRequest) -> bool:
    """Print the tables, and write the files. Whether all were written."""
    try:
        _print_tables(matrix.cells)
    finally:  # a reader that has seen enough, like `head`, costs no file
        is_written = terminal.write_all(
            "collectives matrix",
            {
                request.json_file: lambda file: write_file(file, recorded.as_json(matrix)),
                request.html_file: lambda file: write_file(file, report_html.page(matrix)),
            },
        )
    return is_written


def _measured(
    answers: Iterator[Measured], cells: list[Cell], prints: bool
) -> tuple[list[Measured], bool]:
    """The measured cells in the order of `cells`, and whether Ctrl-C ended the run early."""
    if prints:
        answers = _show_progress(answers, len(cells))
    measured, interrupted = [], False
    try:
        for answer in answers:
            measured.append(answer)
    except KeyboardInterrupt:
        interrupted = True
    order = {cell: number for number, cell in enumerate(cells)}
    return sorted(measured, key=lambda answer: order[answer.cell]), interrupted


def _show_progress(cells: Iterator[Measured], count: int) -> Iterator[Measured]:
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
            if cell.state in BROKEN:
                broken += 1
                text = f"{escape(grid.short_name(cell))}: {escape(cell.detail)}"
                console.print(f"[red]{cell.state}[/] {text}", soft_wrap=True)
            text = f"cells, {broken} bad" if broken else "cells"
            progress.update(task, advance=1, description=text)
            yield cell


def _print_tables(cells: list[Measured]) -> None:
    """Print the tables of each column, and of a column that is not here the reason."""
    for (backend, device, ranks), column in by_column(cells).items():
        if not any(cell.was_tried for cell in column):
            reasons = "; ".join(sorted({cell.detail for cell in column}))
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
