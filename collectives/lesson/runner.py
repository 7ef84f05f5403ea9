"""What stands under each step of a lesson: `run(step)` calls the step in a world and prints what every rank returned.

The same words come out of `python`, torchrun and a notebook: values by rank, and nothing that differs from run to run. Errors and
progress go to stderr.
"""

import argparse
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch
from collectives.lesson.show import Views
from collectives.spec.catalogue import COLLECTIVES, fewest_ranks
from collectives.spec.check import Mismatch

if (
    "torch" not in sys.modules
    and not {"TORCHELASTIC_RUN_ID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"} & os.environ.keys()
):
    # The lesson is about to import torch, and the server of its ranks must too: side by side that takes half the time.
    from collectives.launcher.server import start_server

    start_server()


def run(step: Callable) -> None:
    """Call a step of a lesson in the world that this process belongs to, or else in a new one, and print its results.

    Reads the options from the command line, except in a notebook. In a notebook failures are raised; elsewhere they end the program
    with a message and status 1 (the step failed), 2 (bad usage), 3 (it cannot run here) or 130 (Ctrl-C).
    """
    if _in_notebook():
        views = Views(picture=True)
        print(report(step, launch=views.launch)[0], end="")
        views.display()
        return
    parser = _parser(step)
    options = vars(parser.parse_args())
    try:
        views = _views(
            *(options.pop(name) for name in ("timeline", "trace", "picture", "save_picture"))
        )
    except ValueError as error:
        parser.error(str(error))
    status, _ = attempt(step, views, **options)
    if status not in (0, 3) or (status == 3 and step.__name__ in COLLECTIVES):
        sys.exit(
            status
        )  # a lesson whose first step cannot run has nothing to show; a later step may be skipped


def attempt(step: Callable, views: Views, **options) -> tuple[int, str]:
    """Print the report of one step and its views, or on stderr why it failed; return an exit status and, if not 0, why."""
    from collectives.backends.availability import Unavailable

    try:
        text, skipped = report(step, launch=views.launch, **options)
    except LaunchError as error:
        # Of a launcher's ranks one tells of it: the one that raised, or one that does not hang.
        if _is_alone_or(error.rank if error.kind == "raised" else int(error.rank == 0)):
            print(f"{step.__name__}: {error}", file=sys.stderr)
            views.show_times(step.__name__)
        return 1, str(error).splitlines()[0]
    except Mismatch as error:
        print(error, file=sys.stderr)
        return 1, str(error).splitlines()[-1]
    except ValueError as error:
        if _is_alone_or(0):
            print(f"{step.__name__}: {error}", file=sys.stderr)
        return 3 if isinstance(error, Unavailable) else 2, str(error)
    except KeyboardInterrupt:
        print(f"\n{step.__name__}: interrupted", file=sys.stderr)
        return 130, "interrupted"
    try:
        print(text, end="", flush=True)
        if text and not skipped:  # of a launcher's ranks, rank 0 alone has text
            views.show(step.__name__)
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return (3, text.partition(": skipped: ")[2].strip()) if skipped else (0, "")


def report(
    step: Callable,
    nproc: int | None = None,
    backend: str | None = None,
    device: str | None = None,
    timeout: float = 60.0,
    launch: Callable = launch,
) -> tuple[str, bool]:
    """Run a step; return its text (empty for all but rank 0 of a launcher's world) and whether it was skipped."""
    from collectives.backends import availability as backends
    from collectives.backends import claims
    from collectives.launcher import place as world

    if hasattr(step, "own"):
        return _report_of_its_own_world(step, nproc, backend, device, timeout, launch), False
    place = world.launcher_place()
    world_size = place.world_size if place else 4 if nproc is None else nproc
    name, needs = step.__name__, fewest_ranks(step.__name__)
    reason = (
        f"it needs at least {needs} ranks, this world has {world_size}"
        if 0 < world_size < needs
        else None
    )
    if reason is None:
        chosen = backends.choose(
            backend or (place and place.backend),
            device,
            place.local_world_size if place else world_size,
        )
        reason = claims.refusal(name, *chosen)
    if reason is not None:
        text = f"{name}: skipped: {reason}\n"
    else:
        with _patience(name, world_size):
            text = table(name, launch(step, nproc, backend=backend, device=device, timeout=timeout))
    return "" if place and place.rank else text, reason is not None


def _report_of_its_own_world(
    step: Callable, nproc: int | None, backend, device, timeout: float, launch: Callable
) -> str:
    """The text of a mistake, which must have the symptom that it is known for, or of its cure, which must have none."""
    from collectives.lesson import mistakes

    name, own = step.__name__, step.own
    if nproc not in (None, own.ranks):
        raise ValueError(
            f"nproc={nproc}, but {name} is shown with {own.ranks} ranks: leave nproc out."
        )
    with _patience(name, own.ranks):
        watched = mistakes.alone(step, backend, device, timeout, launch)
    if watched is None:
        return ""
    became, results = watched
    known = own.symptom or "goes unnoticed"
    # A mistake is known by what gloo makes of it; what another backend, or DETAIL, makes of it is told, and not judged.
    judged = not own.symptom or (
        backend in (None, "gloo") and os.environ.get("TORCH_DISTRIBUTED_DEBUG") != "DETAIL"
    )
    text = mistakes.verdict(name, became)
    if judged and mistakes.symptom(became) != known:
        raise Mismatch(f"{text}should have been: {known}")
    return text if own.symptom else table(name, results)


@contextlib.contextmanager
def _patience(name: str, world_size: int):
    """Say on stderr, after a second, that it goes on."""
    patience = threading.Timer(
        1.0, lambda: print(f"{name}: {world_size} ranks are at work ...", file=sys.stderr)
    )
    patience.daemon = True
    patience.start()
    try:
        yield
    finally:
        patience.cancel()


def table(name: str, results: list) -> str:
    """A step's results as text: a line for each rank, a column for each key of the dicts that the ranks returned."""
    rows = cells(results)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    ranks = "1 rank" if len(results) == 1 else f"all {len(results)} ranks"
    return "\n".join([f"{name}: proved on {ranks}", *lines]) + "\n"


def cells(results: list) -> list[list[str]]:
    """The cells of that table, its header first."""
    rows = [result if isinstance(result, dict) else {"result": result} for result in results]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return [["rank", *keys]] + [
        [str(rank), *(_show(row.get(key)) for key in keys)] for rank, row in enumerate(rows)
    ]


def _show(value, inside: bool = False) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if value is None:
        return "-"
    if isinstance(value, float):
        return str(round(value, 4))
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_show(one, inside=True) for one in value) + "]"
    return repr(value) if inside else str(value)


def _in_notebook() -> bool:
    return (
        "ipykernel" in sys.modules
        and sys.modules["ipykernel"].__dict__.get("kernelapp") is not None
    )


def _is_alone_or(rank: int) -> bool:
    """Whether this process has a world of its own, or is this rank of a launcher's."""
    from collectives.launcher import place as world

    try:
        place = world.launcher_place()
    except ValueError:  # half a world
        return True
    return place is None or place.rank == rank


def _parser(step: Callable) -> argparse.ArgumentParser:
    lesson = sys.modules[step.__module__].__doc__ or ""
    parser = argparse.ArgumentParser(
        description=lesson, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--nproc", type=int, help="ranks to start (default 4)")
    parser.add_argument(
        "--backend",
        help="gloo, nccl, ... (default: nccl where every rank can have a GPU, else gloo)",
    )
    parser.add_argument("--device", help="cpu or cuda (default: what suits the backend)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        help="time limit for each step, in seconds (default %(default)g)",
    )
    parser.add_argument(
        "--timeline", action="store_true", help="show when each rank was in which call, in seconds"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE.json", help="write the same for ui.perfetto.dev"
    )
    parser.add_argument("--picture", action="store_true", help="show where every number went")
    parser.add_argument(
        "--save-picture", type=Path, metavar="FILE.svg|png", help="write a picture of each step"
    )
    return parser


@functools.cache
def _views(*wanted) -> Views:
    """One for all steps of a file: its trace holds them all."""
    return Views(*wanted)
