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

_Rounds = Annotated[
    int, typer.Option(min=1, help="How often each is timed, in turn; medians are printed.")
]


@app.command("launch")
def launch(rounds: _Rounds = 5) -> None:
    """Time a launch against torch.multiprocessing.spawn; a lesson against `import torch`, torchrun.

    The two sides of a comparison are timed in turn (A B A B ...), so that a busy machine slows
    both: trust the ratios, not the seconds. The cost of a noted call comes from the best round of
    each side, because disturbances only add time.
    """
    from collectives.bench import calls
    from collectives.bench import launch as launches

    _print_table(
        "launch", lambda tell: launches.measure(rounds, tell) + calls.measure(rounds, tell)
    )


@app.command("matrix")
def matrix(rounds: _Rounds = 1) -> None:
    """Time the gloo/CPU matrix, full and --quick, against torch.multiprocessing.spawn per cell."""
    from collectives.bench import matrix as timings

    _print_table("matrix", lambda tell: timings.measure(rounds, tell))


@app.command("mpi")
def mpi(rounds: _Rounds = 7) -> None:
    """Time all_reduce on MPI against gloo, at three sizes, in the same ranks."""
    from collectives.bench import mpi as timings

    _print_table("mpi", lambda tell: timings.measure(rounds, tell))


def _print_table(name: str, measure: Callable) -> None:
    """Print the rows that `measure` returns. It calls its argument with what it is doing."""
    from collectives.backends.availability import Unavailable

    console = terminal.console(stderr=True)
    try:
        with console.status("measuring") as status:
            rows = measure(status.update if console.is_terminal else console.print)
    except (RuntimeError, Unavailable) as error:
        print(f"collectives bench {name}: {error}", file=sys.stderr)
        raise typer.Exit(3 if isinstance(error, Unavailable) else 1) from None
    table = Table("what", "A", "B", "A / B", "target", "met", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.what, row.first, row.second, f"{row.ratio:.3g}x", row.target, row.met)
    terminal.print_table(table)
