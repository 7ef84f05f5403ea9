"""`collectives run`: run lessons and chapters, and say how each step ended."""

import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from collectives.backends.availability import NAMES, import_modules
from collectives.cli import terminal
from collectives.course import files
from collectives.course.rich_console import console as make_console
from collectives.course.rich_console import print_block
from collectives.launcher.worker import is_alone_or_rank
from collectives.launcher.world import World
from collectives.words import counted

if TYPE_CHECKING:
    from collectives.course.show import Display

STATUSES = (
    "Exit status: 0 passed, 1 a step failed, 2 bad usage, 3 nothing could be run here, 130 Ctrl-C."
)


def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME | CHAPTER | PATH.py", help="Lessons, by name, by chapter or by path."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run every lesson in reading order; no mistakes or myths.")
    ] = False,
    route: Annotated[
        bool, typer.Option("--route", help="Run the lessons that newcomers read first.")
    ] = False,
    nproc: Annotated[
        int | None, typer.Option("--nproc", "-n", help="Ranks to start; 4 unless said otherwise.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(help=f"{NAMES}; nccl where every rank can have a GPU, else gloo."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; what suits the backend.")] = None,
    timeout: Annotated[float, typer.Option(help="Time limit for each step, in seconds.")] = 60.0,
    modules: terminal.Modules = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="Write who was when in which call, for ui.perfetto.dev."
        ),
    ] = None,
    picture: Annotated[
        bool, typer.Option("--picture", help="Show where every number went.")
    ] = False,
    save_picture: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|png", help="Write a picture of each step.")
    ] = None,
    wrong: Annotated[
        bool,
        typer.Option("--wrong", help="Run what the lessons propose below Make it wrong instead."),
    ] = False,
) -> int:
    """Run lessons, each step in a world of ranks, and say how each step ended.

    By name the lessons come from the installed package, or the checkout in COLLECTIVES_CHECKOUT.
    Under torchrun (torchrun --nproc-per-node 4 -m collectives run all_reduce) the world is
    torchrun's, and rank 0 prints.
    """
    begin = time.monotonic()
    try:
        paths = files.choose(names or [], every, route)
        # Before anything else that imports torch: a lesson starts the server that forks the ranks.
        # It imports torch at the same time, and what else this lesson needs.
        lessons = [] if wrong else [_load(path) for path in paths]
        from collectives.course.runner import print_note
        from collectives.course.show import Display

        display = Display(trace, picture, save_picture)
        import_modules(modules or [])
        world = World.chosen(nproc, backend, device, timeout)
        print_note(world)
        if wrong:
            return _run_wrong(paths, world)
    except ValueError as error:
        return terminal.failed("collectives run", error)
    results = _run_all(paths, lessons, world, display)
    if is_alone_or_rank(0):
        count = counted(len(results), "lesson")
        make_console(stderr=True).print(f"\n{count} in {time.monotonic() - begin:.1f} s")
        _print_summary(results)
    return terminal.status_of_all([*_statuses(results), *(2 for _ in display.unwritten)])


def _run_wrong(paths: list[Path], world: World) -> int:
    """Print what the proof says of each wrong program. 1 if it does not notice one."""
    from collectives.course import wrong

    if world.worker is not None:
        raise ValueError("--wrong starts the ranks itself: start it without a launcher.")
    proposals = [(path, wrong.proposals(path)) for path in paths]
    out, status = make_console(), 0
    for path, changes in proposals:
        for number, (title, cell) in enumerate(changes.items(), 1):
            text = wrong.said(path, cell, world)
            status = status if text else 1
            out.print(f"{path.stem} {number}: {escape(title)}")
            out.print(f"  [red]{escape(text or 'nothing was noticed')}[/]")
    return status


@dataclass
class _LessonResult:
    """How many steps of a lesson ended with each exit status, and why some did not with 0."""

    lesson: str
    counts: dict[int, int] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)

    def add(self, step: str, status: int, reason: str) -> None:
        self.counts[status] = self.counts.get(status, 0) + 1
        if status:
            self.reasons.setdefault(reason, []).append(step)


def _run_all(
    paths: list[Path],
    lessons: list[ModuleType | ImportError],
    world: World,
    display: "Display",
) -> list[_LessonResult]:
    """Run every step of these lessons. A file that cannot be loaded does not stop the others."""
    from collectives.course.runner import run_and_print

    results, console = [], make_console(stderr=True)
    for number, (path, lesson) in enumerate(zip(paths, lessons, strict=True), 1):
        result = _LessonResult(path.stem)
        results.append(result)
        if isinstance(lesson, ImportError):
            result.add("(the file)", 1, str(lesson))
            continue
        if is_alone_or_rank(0):
            title = f"[bold]{path.stem}[/] [dim]({number} of {len(lessons)})[/]"
            console.print(f"\n{title}  {escape(files.summary(path))}")
        for step in lesson.STEPS:
            status, reason = run_and_print(step, display, world)
            if status == 130:
                raise typer.Exit(130)
            result.add(step.__name__, status, reason)
    return results


def _load(path: Path) -> ModuleType | ImportError:
    """The lesson, or, so that the others can run, the reason why it cannot be loaded."""
    try:
        return files.load(path)
    except ImportError as error:
        if is_alone_or_rank(0):
            traceback.print_exception(error.__cause__)
        return error


def _print_summary(results: list[_LessonResult]) -> None:
    """Holds no time: what `run` prints on stdout is the same in every run."""
    table = Table("lesson", "passed", "skipped", "failed", "why", box=None, pad_edge=False)
    for result in results:
        passed, skipped = (result.counts.get(status, 0) for status in (0, 3))
        failed = sum(result.counts.values()) - passed - skipped
        why = "\n".join(f"{', '.join(steps)}: {reason}" for reason, steps in result.reasons.items())
        lesson = escape(result.lesson)
        if failed:
            lesson = f"[red]{lesson}[/]"
        elif skipped:
            lesson = f"[yellow]{lesson}[/]"
        else:
            lesson = f"[green]{lesson}[/]"
        table.add_row(lesson, str(passed), str(skipped), str(failed), escape(why))
    print()
    print_block(table)


def _statuses(results: list[_LessonResult]) -> list[int]:
    return [status for result in results for status in result.counts]
