"""`collectives matrix`: words on the command line in; the grid, a JSON and an exit status out."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from collectives.launcher import place as world
from collectives.matrix.recorded import UNAVAILABLE

# Whoever reads the grid in a pipe gets lines no longer than this.
_WIDTH = 120

# The functional collectives import the compiler, which takes longer than ten cells: once, for all ranks.
_PRELOADED = ("torch._dynamo", "torch.distributed.nn", "collectives.spec.probe")

STATUSES = (
    "Exit status: 0 all is as claimed (without claims: every cell works or is clearly refused), 1 something is not, 2 bad usage, "
    "3 nothing could be run here, 130 Ctrl-C."
)


def matrix(
    backend: Annotated[
        list[str] | None, typer.Option(help="gloo, nccl, mpi or another; all that we know of.")
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option(help="cpu, cuda; all that the backends work on.")
    ] = None,
    collective: Annotated[
        list[str] | None, typer.Option(help="A lesson's name, or a form's; all of them.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="float32, ...; all that this torch has.")
    ] = None,
    op: Annotated[list[str] | None, typer.Option(help="SUM, AVG, ...; all of them.")] = None,
    nproc: Annotated[
        list[int] | None, typer.Option("--nproc", "-n", help="World sizes; 2.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One dtype (float32), SUM.")] = False,
    timeout: Annotated[
        float | None, typer.Option(help="Time limit of a cell, in seconds; 10, on GPUs 60.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all answers there.")
    ] = None,
    html_file: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write them as a page that filters."),
    ] = None,
    claims_file: Annotated[
        Path | None,
        typer.Option(
            "--claims", metavar="FILE", help="Claims of your own, beside ours in claims.toml."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="FILE | VERSION | docs",
            help="Compare with a JSON of yours, the recorded one of a torch (2.13), or PyTorch's documentation.",
        ),
    ] = None,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import", metavar="MODULE", help="Import it in every rank: a backend of your own."
        ),
    ] = None,
) -> None:
    """Measure what works: every call, dtype and reduction on every backend, each in a fresh world of ranks.

    Under torchrun (torchrun --nproc-per-node 2 -m collectives matrix) the ranks stand where torchrun's processes do; rank 0 prints.
    Every element on every rank is compared with a closed form, and nothing else may have changed. All options but --quick,
    --timeout and --json can be given several times.
    """
    from collectives.launcher import server

    wants_mpi = not backend or "mpi" in map(str.lower, backend)
    server.start_server(
        (*_PRELOADED, *(["collectives.backends.mpi.group"] if wants_mpi else []))
    )  # it imports torch while we do
    from collectives.backends import claims
    from collectives.matrix import compare_command, recorded, selection, supervise
    from collectives.matrix import run as matrices
    from collectives.spec import probe

    speaks = True
    try:
        place = world.launcher_place()
        speaks = place is None or place.rank == 0
        _check(nproc, timeout, place, json_file, html_file)
        claims.load(claims_file)
        if against is not None:
            compare_command.other(against)
        probe.import_modules(tuple(modules or ()))
        cells = selection.select(
            backend, collective, dtype, op, [place.world_size] if place else nproc, quick, device
        )
    except (ValueError, ImportError, OSError) as error:
        if speaks:
            print(f"collectives matrix: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    answers: list = []
    interrupted = False
    arguments = cells, tuple(modules or ()), timeout
    found = supervise.measure(place, *arguments) if place else matrices.measure(*arguments)
    try:
        for answer in _show_progress(found, len(cells)) if speaks else found:
            answers.append(answer)
    except KeyboardInterrupt:
        interrupted = True
    order = {cell: number for number, cell in enumerate(cells)}
    answers.sort(key=lambda answer: order[answer.cell])
    if not speaks:
        raise typer.Exit(130 if interrupted else 0)
    document = matrices.document(answers)
    if json_file is not None:
        recorded.write(document, json_file)
    if html_file is not None:
        compare_command.html(document, html_file)
    print_grid(answers)
    if interrupted:
        print(f"\ninterrupted: {len(answers)} of {len(cells)} cells were tried", file=sys.stderr)
        raise typer.Exit(130)
    statuses = [3 if all(answer.state == UNAVAILABLE for answer in answers) else 0]
    everything = [
        dataclasses.asdict(cell)
        for cell in selection.select(backend, world_sizes=[*(nproc or ()), 2], device=device)
    ]
    told = [compare_command.claims(document, claims_file, everything)]
    if against is not None:
        selected = bool(backend or device or collective or dtype or op or nproc or quick)
        told.append(compare_command.against(document, against, selected))
    for text, status in told:
        if text:
            print(f"\n{text}")
        statuses.append(status)
    raise typer.Exit(next(status for status in (1, 3, 0) if status in statuses))


def _check(
    nproc: list[int] | None, timeout: float | None, place: world.Place | None, *files: Path | None
) -> None:
    """Refuse at once what would fail after a minute of measuring."""
    if place and place.launcher != "torchrun":
        raise ValueError(
            f"{place.launcher} started this process: start the matrix by itself, or under torchrun."
        )
    if place and nproc not in (None, [place.world_size]):
        raise ValueError(
            f"--nproc {nproc[0]}, but {place.launcher} started {place.world_size} ranks: leave --nproc out."
        )
    for number in nproc or ():
        if number < 1:
            raise ValueError(
                f"--nproc {number} is not a number of ranks: use a whole number from 1."
            )
    if timeout is not None and not 0 < timeout < float("inf"):
        raise ValueError(f"--timeout {timeout:g} is not a time limit: use seconds, more than 0.")
    for file in filter(None, files):
        with file.open("a"):
            pass


def _show_progress(answers: Iterator, count: int) -> Iterator:
    from collectives.matrix import grid

    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    found: list = []
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("cells", total=count)
        for answer in answers:
            found.append(answer)
            bad = sum(one.state in ("wrong", "hangs", "crashes") for one in found)
            progress.update(
                task, advance=1, description=escape(f"cells{f', {bad} bad' if bad else ''}")
            )
            if answer.state in ("wrong", "hangs", "crashes"):
                console.print(
                    f"[red]{answer.state}[/] {escape(grid.name(answer))}: {escape(answer.detail)}",
                    soft_wrap=True,
                )
            yield answer


def print_grid(answers: list) -> None:
    """The tables of each backend, device and world size; of those that are not here, the reason."""
    from collectives.matrix import grid

    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_WIDTH)
    for (backend, device, world_size), column in grid.by_column(answers).items():
        away = {answer.detail for answer in column if answer.state == UNAVAILABLE}
        if all(answer.state == UNAVAILABLE for answer in column):
            console.print(
                f"\n{backend}/{device}: unavailable here: {escape('; '.join(sorted(away)))}",
                soft_wrap=True,
            )
            continue
        for table in (grid.by_dtype(column), grid.by_variant(column)):
            if table is not None:
                table.title = f"\n{backend}/{device}, {world_size} ranks"
                table.title_justify = "left"
                with console.capture() as text:
                    console.print(table)
                sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.get().splitlines()))
    console.print()
    console.print(grid.legend())
    for state, count, first, detail in grid.reasons(answers):
        more = f" and {count - 1} more" if count > 1 else ""
        console.print(f"{state}: {escape(first)}{more}: {escape(detail)}", soft_wrap=True)
    console.print(grid.counts(answers), soft_wrap=True)
