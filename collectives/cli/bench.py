"""`collectives bench`: ratios of one run, as a table."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.table import Table

from collectives.cli import terminal

app = typer.Typer(
    help="Measure, and print the ratios of one run.", no_args_is_help=True, rich_markup_mode="rich"
)


@app.command("launch")
def launch(
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each is timed, in turn; medians are printed.")
    ] = 5,
) -> None:
    """Time a launch against torch.multiprocessing.spawn, and a lesson against `import torch` and torchrun.

    What is compared is timed in turn (A B A B ...), so that a busy machine hurts both alike: trust the ratios, not the seconds.
    What a noted call costs is told by the best round of each side, for what disturbs can only add.
    """
    from collectives.bench import calls
    from collectives.bench import launch as launches

    _table("launch", lambda tell: launches.measure(rounds, tell) + calls.measure(rounds, tell))


@app.command("matrix")
def matrix(
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each is timed, in turn; medians are printed.")
    ] = 1,
) -> None:
    """Time the full gloo/CPU matrix, and --quick, against torch.multiprocessing.spawn for each cell."""
    from collectives.bench import matrix as timings

    _table("matrix", lambda tell: timings.measure(rounds, tell))


@app.command("mpi")
def mpi(
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each is timed, in turn; medians are printed.")
    ] = 7,
) -> None:
    """Time all_reduce on MPI against gloo, at three sizes, in the same ranks."""
    from collectives.bench import mpi as timings

    _table("mpi", lambda tell: timings.measure(rounds, tell))


def _table(name: str, measure: Callable) -> None:
    from collectives.backends.availability import Unavailable

    console = terminal.console(stderr=True)
    try:
        with console.status("measuring") as status:
            rows = measure(status.update if console.is_terminal else console.print)
    except RuntimeError as error:
        print(f"collectives bench {name}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except Unavailable as error:
        print(f"collectives bench {name}: {error}", file=sys.stderr)
        raise typer.Exit(3) from None
    table = Table("what", "A", "B", "A / B", "target", "met", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.what, row.first, row.second, f"{row.ratio:.3g}x", row.target, row.met)
    terminal.print_table(table)
