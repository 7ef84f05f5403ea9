"""`collectives bench`: ratios of one run, as a table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from collectives.cli import bus as cli_bus
from collectives.cli import terminal
from collectives.cli.outputs import check_outputs

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
    """Time all_reduce on MPI against gloo and mpi4py alone, at three sizes, in the same ranks."""
    from collectives.bench import mpi as timings

    _print_table("mpi", lambda tell: timings.measure(rounds, tell))


@app.command("algorithms")
def algorithms(
    rounds: _Rounds = 9,
    nproc: Annotated[int, typer.Option("--nproc", "-n", min=2, help="The number of ranks.")] = 4,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all rounds there.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png|svg", help="Draw it. Needs collectives[pictures]."),
    ] = None,
) -> None:
    """Time all_reduce with each algorithm of by_hand, on gloo and MPI; and a step of DDP and FSDP2.

    All of them have the same ranks and tensors, and are timed in turn. `memcpy` is a copy of the
    tensor in every rank at the same time.
    """
    from collectives.bench import algorithm_times
    from collectives.bench import algorithms as timings

    def measure(tell):
        check_outputs([json_file], plot)
        return timings.measure(nproc, rounds, list(timings.SIZES), list(timings.WIDTHS), tell)

    document = _measured("algorithms", measure)
    _print_rows(algorithm_times.rows(document))
    heads, *lines = algorithm_times.table_rows(document)
    table = Table(*heads, box=None, pad_edge=False)
    for line in lines:
        table.add_row(*line)
    print()
    terminal.print_table(table)
    if json_file:
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if plot:
        from collectives.pictures import crossings

        crossings.draw(algorithm_times.curves(document), {}, f"all_reduce, {nproc} ranks", plot)


app.command("bus", epilog=cli_bus.STATUSES)(cli_bus.bus)


def _print_table(name: str, measure: Callable) -> None:
    _print_rows(_measured(name, measure))


def _measured(name: str, measure: Callable):
    """What `measure` returns. It calls its argument with what it is doing."""
    console = terminal.console(stderr=True)
    try:
        with console.status("measuring") as status:
            return measure(status.update if console.is_terminal else console.print)
    except (RuntimeError, ValueError) as error:
        raise terminal.failed(f"collectives bench {name}", error) from None


def _print_rows(rows: list) -> None:
    table = Table("what", "A", "B", "A / B", "target", "met", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.what, row.first, row.second, f"{row.ratio:.3g}x", row.target, row.met)
    terminal.print_table(table)
