"""`collectives bench bus`: its flags, and what becomes of the table."""

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collectives.backends.availability import NAMES, import_modules
from collectives.cli import terminal
from collectives.course.console import check_files, print_text, write_file, writing

if TYPE_CHECKING:
    from collectives.bench.bus import Table

STATUSES = (
    "Exit status: 0 all elements are right, 1 some are wrong or a rank failed, 2 bad usage, "
    "3 it cannot run here."
)


# Sizes as one types them. A letter alone counts in powers of 1024, as in nccl-tests.
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS |= dict.fromkeys(("K", "KIB"), 2**10)
_UNITS |= dict.fromkeys(("M", "MIB"), 2**20)
_UNITS |= dict.fromkeys(("G", "GIB"), 2**30)


def size_in_bytes(text: str | int) -> int:
    """16MiB as a number; a default is one already. Raises typer.BadParameter."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-zA-Z]*)", str(text).strip())
    if not found or found[2].upper() not in _UNITS:
        raise typer.BadParameter(f"{text!r} is no size: write 4, 64KiB, 16MiB or 1GiB.")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _size(*flags: str, help: str) -> Any:
    return typer.Option(*flags, parser=size_in_bytes, metavar="SIZE", help=help, show_default=False)


def bus(
    collectives: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COLLECTIVE]...", help="all_reduce (default), all_gather, ..."),
    ] = None,
    begin: Annotated[int, _size("-b", "--begin", help="The first size; 1KiB.")] = 2**10,
    end: Annotated[int, _size("-e", "--end", help="No size is larger; 64MiB.")] = 2**26,
    factor: Annotated[
        int, typer.Option("-f", "--factor", min=2, help="Each size is so many times the last.")
    ] = 4,
    nproc: Annotated[
        int | None, typer.Option("--nproc", "-n", min=1, help="Ranks to start; 4.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help=f"{NAMES}.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    dtype: Annotated[str, typer.Option(help="As torch calls it.")] = "float32",
    op: Annotated[str, typer.Option(help="SUM, AVG, PRODUCT, MIN, MAX, ...")] = "SUM",
    root: Annotated[int, typer.Option(help="The root of a call that has one.")] = 0,
    iters: Annotated[int, typer.Option(min=1, help="Calls that are timed together.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Calls before them.")] = 5,
    timeout: Annotated[float, typer.Option(help="For the whole run, in seconds.")] = 600.0,
    modules: terminal.Modules = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png|svg", help="Draw it. Needs torch-collectives[pictures]."),
    ] = None,
) -> int:
    """Print nccl-tests' table for any backend: time, bandwidths and wrong elements by size.

    Under torchrun, mpiexec or srun, the ranks are the launcher's, on any number of machines, and
    rank 0 prints and writes. The time is the mean of all ranks; every element of one more call is
    compared with what it must be.
    """
    from collectives.bench import bus as bench
    from collectives.launcher.worker import is_alone_or_rank
    from collectives.launcher.world import World

    speaks = is_alone_or_rank(0)
    try:
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
        import_modules(modules or ())
        world = World.chosen(nproc, backend, device, timeout)
        request.check(world.nproc)
        if speaks:
            _check_outputs([csv_file, json_file], plot)
        measured = bench.measure(request, world)
    except (ValueError, RuntimeError) as error:
        return terminal.failed("collectives bench bus", error)
    is_written = True
    if speaks:
        try:
            print_text(bench.as_text(measured))
        finally:  # a reader that has seen enough, like `head`, costs no file
            is_written = terminal.write_all(
                "collectives bench bus",
                {
                    csv_file: lambda file: write_file(file, bench.as_csv(measured)),
                    json_file: lambda file: write_file(file, bench.as_json(measured)),
                    plot: lambda file: _draw(measured, file),
                },
            )
    return 2 if not is_written else 1 if measured.wrong else 0


def _draw(measured: "Table", file: Path) -> None:
    from collectives.bench.bus import curves
    from collectives.pictures import bandwidth

    with writing(file):
        bandwidth.draw(curves(measured), f"{measured.ranks} ranks, {measured.backend}", file)


def _check_outputs(files: list[Path | None], plot: Path | None) -> None:
    """Raises ValueError if one cannot be written: a long measurement must not be lost."""
    if plot and plot.suffix not in (".png", ".svg"):
        raise ValueError(f"--plot {plot}: name a file that ends in .png or .svg.")
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "--plot needs matplotlib: pip install 'torch-collectives[pictures]' brings it."
        )
    check_files(*files, plot)
