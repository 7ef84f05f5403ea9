"""`collectives bench bus`: its flags, and what becomes of the table."""

from pathlib import Path
from typing import Annotated

import typer

from collectives.cli import terminal
from collectives.cli.outputs import check_outputs
from collectives.cli.sizes import size_in_bytes

STATUSES = (
    "Exit status: 0 all elements are right, 1 some are wrong or a rank failed, 2 bad usage, "
    "3 it cannot run here."
)

_Size = {"parser": size_in_bytes, "metavar": "SIZE"}


def bus(  # long: the flags, each with its help
    collectives: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COLLECTIVE]...", help="all_reduce (default), all_gather, ..."),
    ] = None,
    begin: Annotated[int, typer.Option("-b", "--begin", **_Size, help="The first size.")] = "1KiB",
    end: Annotated[int, typer.Option("-e", "--end", **_Size, help="No size is larger.")] = "64MiB",
    factor: Annotated[
        int, typer.Option("-f", "--factor", min=2, help="Each size is so many times the last.")
    ] = 4,
    nproc: Annotated[
        int | None, typer.Option("--nproc", "-n", min=1, help="Ranks to start; 4.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="gloo, nccl, mpi, by_hand.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    dtype: Annotated[str, typer.Option(help="As torch calls it.")] = "float32",
    op: Annotated[str, typer.Option(help="SUM, AVG, PRODUCT, MIN, MAX, ...")] = "SUM",
    root: Annotated[int, typer.Option(help="The root of a call that has one.")] = 0,
    iters: Annotated[int, typer.Option(min=1, help="Calls that are timed together.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Calls before them.")] = 5,
    timeout: Annotated[float, typer.Option(help="For the whole run, in seconds.")] = 600.0,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png|svg", help="Draw it. Needs collectives[pictures]."),
    ] = None,
) -> None:
    """Print nccl-tests' table for any backend: time, bandwidths and wrong elements by size.

    Under torchrun, mpiexec or srun, the ranks are the launcher's, on any number of machines, and
    rank 0 prints and writes. The time is the mean of all ranks; every element of one more call is
    compared with what it must be.
    """
    from collectives.bench import bus as bench
    from collectives.launcher.place import launcher_place

    speaks = True
    try:
        place = launcher_place()
        speaks = place is None or place.rank == 0
        request = bench.Request(
            tuple(collectives or ["all_reduce"]),
            begin,
            end,
            factor,
            dtype=dtype,
            op=op,
            root=root,
            iters=iters,
            warmup=warmup,
        )
        request.check(place.world_size if place else nproc or 4)
        if speaks:
            check_outputs([csv_file, json_file], plot)
        found = bench.measure(request, nproc, backend, device, timeout)
    except (ValueError, RuntimeError) as error:
        raise terminal.failed("collectives bench bus", error, speaks) from None
    if speaks:
        print(bench.as_text(found))
        for file, text in ((csv_file, bench.as_csv), (json_file, bench.as_json)):
            if file:
                file.write_text(text(found), encoding="utf-8")
        if plot:
            from collectives.pictures import bandwidth

            bandwidth.draw(bench.curves(found), f"{found.ranks} ranks, {found.backend}", plot)
    raise typer.Exit(1 if found.wrong else 0)
