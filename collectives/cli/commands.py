"""The command line: run lessons, say what is here, time launches.

Exit statuses: 0 all as it should be, 1 a step failed, 2 bad usage, 3 nothing could be run here, 130 Ctrl-C.
"""

import math
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
import typer.core
from rich.markup import escape
from rich.table import Table

from collectives.backends import machine
from collectives.cli import bench as cli_bench
from collectives.cli import diagnose as cli_diagnose
from collectives.cli import matrix as cli_matrix
from collectives.cli import terminal
from collectives.launcher import place as world
from collectives.lesson import files
from collectives.spec.catalogue import COLLECTIVES


class _Commands(typer.core.TyperGroup):
    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            raise typer.Exit(130) from None


_STYLE = {
    "add_completion": False,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
}
app = typer.Typer(
    cls=_Commands, help="Learn the collectives of torch.distributed by running them.", **_STYLE
)


def main() -> None:
    app(prog_name="collectives")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"collectives {machine.version() or '(not installed)'}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command("list")
def list_lessons() -> None:
    """List the twelve lessons in reading order."""
    table = Table(
        "lesson", "what happens", "fewest ranks", "bus-bandwidth factor", box=None, pad_edge=False
    )
    for record in COLLECTIVES.values():
        table.add_row(
            record.name, record.summary, str(record.min_world_size), record.bus_factor or "-"
        )
    terminal.print_table(table)


@app.command("env")
def env() -> None:
    """Print what a bug report needs: versions, GPUs, cores, and which backends work here."""
    for name, value in machine.facts():
        print(f"{name:<12} {value}")


_STATUSES = (
    "Exit status: 0 proved, 1 a step failed, 2 bad usage, 3 nothing could be run here, 130 Ctrl-C."
)


@app.command(no_args_is_help=True, epilog=_STATUSES)
def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME | PATH.py", help="Lessons, by name or by path."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run the twelve lessons in reading order.")
    ] = False,
    nproc: Annotated[
        int | None, typer.Option("--nproc", "-n", help="Ranks to start; 4 unless said otherwise.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="gloo, nccl, mpi; nccl where every rank can have a GPU, else gloo."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; what suits the backend.")] = None,
    timeout: Annotated[float, typer.Option(help="Time limit for each step, in seconds.")] = 60.0,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show when each rank was in which call, in seconds.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the same for ui.perfetto.dev.")
    ] = None,
    picture: Annotated[
        bool, typer.Option("--picture", help="Show where every number went.")
    ] = False,
    save_picture: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|png", help="Write a picture of each step.")
    ] = None,
) -> None:
    """Run lessons, each step in a world of ranks, and say what was proved.

    By name the lessons come from the checkout that you stand in, else from the installed package. Under torchrun
    (torchrun --nproc-per-node 4 -m collectives run all_reduce) the world is torchrun's, and rank 0 prints.
    """
    options = {"nproc": nproc, "backend": backend, "device": device, "timeout": timeout}
    speaks = True
    try:
        place = world.launcher_place()
        speaks = place is None or place.rank == 0
        paths = files.choose(names or [], every)
        results = _run_all(paths, place, speaks, options, (timeline, trace, picture, save_picture))
    except ValueError as error:
        if speaks:
            print(f"collectives run: {error}", file=sys.stderr)
        from collectives.backends.availability import Unavailable

        raise typer.Exit(3 if isinstance(error, Unavailable) else 2) from None
    if speaks:
        _print_summary(results)
    raise typer.Exit(_status(results))


@dataclass
class _Result:
    """What became of a lesson: how many of its steps ended with each exit status, and the steps that share a reason not to be 0."""

    lesson: str
    counts: dict[int, int] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)

    def add(self, step: str, status: int, reason: str) -> None:
        self.counts[status] = self.counts.get(status, 0) + 1
        if status:
            self.reasons.setdefault(reason, []).append(step)


def _check(
    place: world.Place | None,
    nproc: int | None,
    backend: str | None,
    device: str | None,
    timeout: float,
) -> None:
    """Refuse once, before the first lesson, what every step would refuse."""
    if nproc is not None and nproc < 1:
        raise ValueError(f"--nproc {nproc} is not a number of ranks: use a whole number from 1.")
    if not 0 < timeout < math.inf:
        raise ValueError(f"--timeout {timeout:g} is not a time limit: use seconds, more than 0.")
    if place and nproc not in (None, place.world_size):
        raise ValueError(
            f"--nproc {nproc}, but {place.launcher} started {place.world_size} ranks: leave --nproc out."
        )
    from collectives.backends import availability as backends

    backends.choose(
        backend or (place and place.backend),
        device,
        place.local_world_size if place else nproc or 4,
    )


def _run_all(
    paths: list[Path], place: world.Place | None, speaks: bool, options: dict, wanted: tuple
) -> list[_Result]:
    begin, results, console = time.monotonic(), [], terminal.console(stderr=True)
    # Before anything that imports torch: the server of the ranks then imports it at the same time.
    from collectives.lesson.runner import attempt
    from collectives.lesson.show import Views

    views = Views(*wanted)
    _check(place, **options)
    lessons = [(path, _load(path, speaks)) for path in paths]
    for number, (path, lesson) in enumerate(lessons, 1):
        result = _Result(path.stem)
        results.append(result)
        if isinstance(lesson, ImportError):
            result.add("(the file)", 1, str(lesson))
            continue
        if speaks:
            summary = COLLECTIVES[path.stem].summary if path.stem in COLLECTIVES else str(path)
            console.print(
                f"\n[bold]{path.stem}[/] [dim]({number} of {len(lessons)})[/]  {escape(summary)}"
            )
        for step in lesson.STEPS:
            status, reason = attempt(step, views, **options)
            if status == 130:
                raise typer.Exit(130)
            result.add(step.__name__, status, reason)
    if speaks:
        lessons_run = "1 lesson" if len(results) == 1 else f"{len(results)} lessons"
        console.print(f"\n{lessons_run} in {time.monotonic() - begin:.1f} s")
    return results


def _load(path: Path, speaks: bool):
    """The lesson, or, so that the others can run, what is wrong with its file."""
    try:
        return files.load(path)
    except ImportError as error:
        if speaks:
            traceback.print_exception(error.__cause__)
        return error


def _print_summary(results: list[_Result]) -> None:
    """Holds no time: what `run` prints on stdout is the same in every run."""
    table = Table("lesson", "proved", "skipped", "failed", "why", box=None, pad_edge=False)
    for result in results:
        proved, skipped = (result.counts.get(status, 0) for status in (0, 3))
        failed = sum(result.counts.values()) - proved - skipped
        why = "\n".join(f"{', '.join(steps)}: {reason}" for reason, steps in result.reasons.items())
        colour = "red" if failed else "yellow" if skipped else "green"
        table.add_row(
            f"[{colour}]{escape(result.lesson)}[/]",
            str(proved),
            str(skipped),
            str(failed),
            escape(why),
        )
    print()
    terminal.print_table(table)


def _status(results: list[_Result]) -> int:
    statuses = {status for result in results for status in result.counts}
    return next((status for status in (1, 2, 0) if status in statuses), 3)


app.command("matrix", epilog=cli_matrix.STATUSES)(cli_matrix.matrix)
app.command("diagnose", epilog=cli_diagnose.STATUSES, no_args_is_help=True)(cli_diagnose.diagnose)
app.add_typer(cli_bench.app, name="bench")
