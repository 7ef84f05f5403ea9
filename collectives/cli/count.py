"""`collectives count`: what each algorithm of a collective sends."""

from typing import Annotated

import typer
from rich.table import Table

from collectives.cli import terminal
from collectives.cli.sizes import size_in_bytes
from collectives.course.console import print_block


def count(
    collective: Annotated[str, typer.Argument(help="all_reduce, broadcast, all_gather, ...")],
    size: Annotated[
        int,
        typer.Option(
            parser=size_in_bytes, metavar="SIZE", help="Bytes of the full array, like 16MiB."
        ),
    ] = "16MiB",  # type: ignore[assignment]  # typer parses it
    nproc: Annotated[int, typer.Option("--nproc", "-n", min=1, help="The number of ranks.")] = 4,
) -> None:
    """Count the messages and bytes of each algorithm, from its schedule. Nothing is sent.

    The last column is what the busiest rank sends or receives, as a share of the full array. The
    smallest one is the factor between algorithm bandwidth and bus bandwidth.
    """
    from collectives.algorithms import table as algorithms
    from collectives.algorithms.count import traffic

    if collective not in algorithms.ALGORITHMS:
        known = ", ".join(algorithms.ALGORITHMS)
        error = ValueError(f"no algorithm for {collective!r}: take {known}")
        raise terminal.failed("collectives count", error)
    table = Table("algorithm", "steps", box=None, pad_edge=False)
    for head in ("messages of a rank", "of all", "bytes of a rank", "of all", "busiest / array"):
        table.add_column(head, justify="right")
    for name in algorithms.names(collective, nproc):
        found = traffic(collective, name, nproc, size)
        table.add_row(
            name,
            str(found.steps),
            str(max(found.messages)),
            str(sum(found.messages)),
            str(max(found.sent)),
            str(sum(found.sent)),
            f"{found.busiest() / size:.4g}" if size and collective != "barrier" else "-",
        )
    print_block(table)
