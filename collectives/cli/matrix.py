"""`collectives matrix`: its flags. What becomes of them is in matrix_run.py."""

from pathlib import Path
from typing import Annotated

import typer

from collectives.backends.availability import NAMES
from collectives.backends.availability import modules as backend_modules
from collectives.cli.terminal import Modules
from collectives.matrix import PRELOADED

STATUSES = (
    "Exit status: 0 all is as claimed (without claims: every cell works or is clearly refused), "
    "1 something is not, 2 bad usage, 3 nothing could be run here, 130 Ctrl-C."
)

_Names = list[str] | None


def matrix(
    backend: Annotated[
        _Names, typer.Option(help=f"{NAMES} or another; all that we know of.")
    ] = None,
    device: Annotated[
        _Names, typer.Option(help="cpu, cuda; all that the backends work on.")
    ] = None,
    collective: Annotated[
        _Names, typer.Option(help="A lesson's name, or a form's; all of them.")
    ] = None,
    dtype: Annotated[_Names, typer.Option(help="float32, ...; all that this torch has.")] = None,
    op: Annotated[_Names, typer.Option(help="SUM, AVG, ...; all of them.")] = None,
    nproc: Annotated[
        list[int] | None, typer.Option("--nproc", "-n", help="World sizes; 2.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One dtype (float32), SUM, no lazy tensors.")
    ] = False,
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
            metavar="FILE | VERSION",
            help="Compare with a JSON of yours, or the recorded one of a torch (2.13).",
        ),
    ] = None,
    modules: Modules = None,
) -> int:
    """Measure what works: each call, dtype and reduction on each backend, in a world of its own.

    Under torchrun (torchrun --nproc-per-node 2 -m collectives matrix) the ranks
    stand where torchrun's processes do; rank 0 prints. Every element on every
    rank is compared with a closed form, and nothing else may have changed. All
    options but --quick, --timeout and --json can be given several times.
    """
    from collectives.launcher import server

    # It imports torch while this process does.
    server.start_server((*PRELOADED, *backend_modules(backend)))
    from collectives.cli import matrix_run

    request = matrix_run.MatrixRequest(
        backend=backend,
        device=device,
        collective=collective,
        dtype=dtype,
        op=op,
        nproc=nproc,
        quick=quick,
        timeout=timeout,
        json_file=json_file,
        html_file=html_file,
        claims_file=claims_file,
        against=against,
        modules=modules,
    )
    return matrix_run.execute(request)
