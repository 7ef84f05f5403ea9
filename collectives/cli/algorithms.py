"""`collectives count`, `predict`, `simulate`, `steps`: the textbook algorithms and their cost."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from collectives.cli import terminal
from collectives.cli.outputs import check_outputs
from collectives.cli.sizes import size_in_bytes

Size = Annotated[
    int,
    typer.Option(parser=size_in_bytes, metavar="SIZE", help="Bytes of the full array, like 16MiB."),
]
Collective = Annotated[str, typer.Argument(help="all_reduce, broadcast, all_gather, ...")]
Ranks = Annotated[int, typer.Option("--nproc", "-n", min=1, help="The number of ranks.")]


def count(collective: Collective, size: Size = "16MiB", nproc: Ranks = 4) -> None:
    """Count the messages and bytes of each algorithm, from its schedule. Nothing is sent.

    The last column is what the busiest rank sends or receives, as a share of the full array. The
    smallest one is the factor between algorithm bandwidth and bus bandwidth.
    """
    from collectives.backends.algorithms import count as counting
    from collectives.backends.algorithms import table as algorithms

    _check("count", collective)
    table = Table("algorithm", "steps", box=None, pad_edge=False)
    for head in ("messages of a rank", "of all", "bytes of a rank", "of all", "busiest / array"):
        table.add_column(head, justify="right")
    for name in algorithms.names(collective, nproc):
        found = counting.traffic(collective, name, nproc, size)
        table.add_row(
            name,
            str(found.steps),
            str(max(found.messages)),
            str(sum(found.messages)),
            str(max(found.sent)),
            str(sum(found.sent)),
            f"{found.busiest() / size:.4g}" if size and collective != "barrier" else "-",
        )
    terminal.print_table(table)


def predict(
    collective: Collective,
    size: Size = "16MiB",
    nproc: Ranks = 4,
    measure: Annotated[bool, typer.Option(help="Then measure all of them, and compare.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png|svg", help="Draw the times of all sizes. Needs collectives[pictures]."
        ),
    ] = None,
) -> None:
    """Predict the time of each algorithm on this machine, over the sockets of by_hand.

    First, ranks measure what a step of all of them costs, in less than 20 seconds. Shared memory
    needs no messages, and is not predicted.
    """
    from collectives.backends.algorithms import table as algorithms
    from collectives.bench import predict as prediction

    _check("predict", collective)
    try:
        check_outputs([], plot)
        fit = prediction.fit(nproc)
        measured = prediction.measured(collective, nproc, size) if measure else {}
    except (ValueError, RuntimeError) as error:
        raise terminal.failed("collectives predict", error) from None
    names = algorithms.names(collective, nproc)
    seconds = {name: prediction.predicted(fit, collective, name, size) for name in names}
    if plot:
        from collectives.pictures import crossings

        points = {name: [(size, found)] for name, found in measured.items()}
        title = f"{collective}, {nproc} ranks, over sockets: predicted"
        crossings.draw(prediction.by_size(fit, collective), points, title, plot)
    _print_times(seconds, measured)


def _print_times(predicted: dict[str, float], measured: dict[str, float]) -> None:
    """A row for each algorithm, the fastest first. Nothing may have been measured."""
    table = Table("algorithm", box=None, pad_edge=False)
    for head in ("predicted", *(["measured", "predicted / measured"] if measured else [])):
        table.add_column(head, justify="right")
    for name in sorted(predicted, key=predicted.get):
        cells = [f"{predicted[name] * 1e3:.3g} ms"]
        if measured:
            cells += [f"{measured[name] * 1e3:.3g} ms", f"{predicted[name] / measured[name]:.2f}"]
        table.add_row(name, *cells)
    terminal.print_table(table)


def _check(command: str, collective: str) -> None:
    from collectives.backends.algorithms import table

    if collective not in table.ALGORITHMS:
        known = ", ".join(table.ALGORITHMS)
        print(
            f"collectives {command}: no algorithm for {collective!r}: take {known}",
            file=sys.stderr,
        )
        raise typer.Exit(2)


def simulate(
    nproc: Annotated[
        int, typer.Option("--nproc", "-n", min=2, help="The number of ranks.")
    ] = 24_576,
    per_node: Annotated[int, typer.Option(min=1, help="Ranks of one node.")] = 6,
) -> None:
    """Simulate an all_reduce on a ring and on a double binary tree, under several assumptions.

    The latencies are the estimates in NCCL's source of 2019 and 2020 (documented). The last column
    is the size from which on the ring is faster.
    """
    from collectives.backends.algorithms import nccl

    if nproc % per_node:
        print(
            f"collectives simulate: {nproc} ranks do not fill nodes of {per_node}", file=sys.stderr
        )
        raise typer.Exit(2)
    table = Table("assumption", box=None, pad_edge=False)
    for head in ("ring", "tree", "ring / tree", "ring wins from"):
        table.add_column(head, justify="right")
    for assumption in nccl.ASSUMPTIONS:
        ring = nccl.ring_time(assumption, nproc, per_node)
        tree = nccl.tree_time(assumption, nproc, per_node)
        size = nccl.crossing(assumption, nproc, per_node)
        table.add_row(
            assumption.name,
            f"{ring * 1e3:.4g} ms",
            f"{tree * 1e3:.4g} ms",
            f"{ring / tree:.4g}",
            nccl.size_text(size),
        )
    terminal.print_table(table)


def steps(
    file: Annotated[Path, typer.Argument(metavar="FILE.html", help="The page to write.")],
) -> None:
    """Write a page on which one steps through every algorithm, for 1 to 16 ranks.

    It is one file that needs nothing else. Open it in a browser.
    """
    from collectives.pictures import steps_page as page

    try:
        file.write_text(page.page(), encoding="utf-8")
    except OSError as error:
        print(f"collectives steps: {file} cannot be written: {error.strerror}.", file=sys.stderr)
        raise typer.Exit(2) from None
