"""`collectives practice`: try what the reader wrote for an exercise, and say what is wrong."""

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from collectives.cli import terminal
from collectives.course.rich_console import console, print_block
from collectives.launcher.server import start_beside_torch

if TYPE_CHECKING:
    from collectives.course.practice.checker import ExerciseVerdict
    from collectives.course.practice.exercise import Exercise
    from collectives.course.practice.progress import Progress

STATUSES = "Exit status: 0 solved, 1 not yet, 2 bad usage."


class _Practice(typer.core.TyperGroup):
    """A first word that is no command is the name of an exercise; without one it is the next."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--help" not in args[:1] and (not args or args[0] not in self.commands):
            args = ["try", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Practice,
    help="Solve exercises: write a function, and see in which case it is wrong. "
    "`collectives practice` tries the next one that is not solved.",
    rich_markup_mode="rich",
)


def _here() -> "Progress":
    from collectives.course.practice import progress

    try:
        return progress.find()
    except ValueError as error:
        raise typer.Exit(terminal.failed("collectives practice", error)) from None


def _named(name: str) -> "Exercise":
    from collectives.course.practice import registry

    try:
        return registry.find(name)
    except ValueError as error:
        raise typer.Exit(terminal.failed("collectives practice", error)) from None


@app.command("try", hidden=True, epilog=STATUSES)
def try_(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None,
    hint: Annotated[bool, typer.Option("--hint", help="Show the next hint.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Try again whenever the file is saved; Ctrl-C ends it.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Try all exercises.")] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print JSON, for a class. No examination: a program can deceive it.",
        ),
    ] = False,
) -> int:
    """Try one exercise, or the next one that is not solved."""
    if not hint:
        start_beside_torch("collectives.course.practice.run_cases")
    here = _here()
    if every:
        return _try_all(here, as_json)
    wanted = _named(name) if name else here.next()
    if hint and wanted:
        number, text = here.next_hint(wanted)
        print(here.said(f"{wanted.name}, hint {number} of {len(wanted.hints)}: {text}"))
        return 0
    while wanted is not None:
        file, saved = here.file(wanted), _saved(here.file(wanted))
        verdict = _try(here, wanted, as_json)
        if not watch:
            return 0 if verdict.is_solved else 1
        if verdict.is_solved and not name:
            wanted = here.next()
            continue
        print(here.said(f"Waiting until {_shown(file)} is saved ..."), file=sys.stderr)
        while _saved(file) == saved:
            time.sleep(0.2)
    print(here.said("All exercises are solved."))
    return 0


def _saved(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


def _try(here: "Progress", wanted: "Exercise", as_json: bool) -> "ExerciseVerdict":
    from collectives.course.practice import answer

    verdict = _verdict(here, wanted, speaks=not as_json)
    if as_json:
        print(json.dumps([_plain(wanted, verdict)], indent=2))
        return verdict
    print_block(answer.block(wanted, verdict, here.said))
    if verdict.is_solved:
        following = here.next()
        further = here.said(f"Next: {_shown(here.file(following))}") if following else ""
        print(here.said(f"{here.count} solved."), further)
    else:
        print(here.said(f"The file: {_shown(here.file(wanted))}"))
        print(here.said(f"A hint: collectives practice {wanted.name} --hint"))
    return verdict


def _verdict(here: "Progress", wanted: "Exercise", speaks: bool = False) -> "ExerciseVerdict":
    with _counter(wanted, speaks) as report:
        return here.try_file(wanted, report, prints=speaks)


@contextlib.contextmanager
def _counter(wanted: "Exercise", speaks: bool) -> Iterator[Callable[[str], None]]:
    """On a terminal, show after a second what is being tried."""
    begun, status = time.monotonic(), console(stderr=True).status("")

    def report(what: str) -> None:
        if speaks and status.console.is_terminal and time.monotonic() > begun + 1:
            status.update(f"{wanted.name}: {what}")
            status.start()

    try:
        yield report
    finally:
        status.stop()


def _try_all(here: "Progress", as_json: bool) -> int:
    from collectives.course.practice import registry

    found = []
    for wanted in registry.read().values():
        verdict = _verdict(here, wanted)
        found.append(_plain(wanted, verdict))
        if not as_json:
            print(f"{verdict.kind:<7} {wanted.name}: {verdict.says}", flush=True)
    if as_json:
        print(json.dumps(found, indent=2))
    return 0 if all(one["kind"] == "solved" for one in found) else 1


def _plain(wanted: "Exercise", verdict: "ExerciseVerdict") -> dict[str, Any]:
    return {"exercise": wanted.name, "stars": wanted.stars, **vars(verdict)}


def _shown(file: Path) -> str:
    here = Path.cwd()
    return shlex.quote(str(file.relative_to(here) if file.is_relative_to(here) else file))


@app.command("start")
def start(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    language: Annotated[
        str, typer.Option("--language", help="en or zh: of what is said in this folder.")
    ] = "en",
) -> int:
    """Copy the exercises into a folder of your own."""
    from collectives.course.practice import progress, registry

    try:
        made = progress.start(folder, language)
    except (ValueError, OSError) as error:
        return terminal.failed("collectives practice start", error)
    first = made.next()
    assert first is not None
    print(made.said(f"{len(registry.read())} exercises are in {folder}. Go on with:\n"))
    print(f"  cd {shlex.quote(str(folder))}")
    print(made.said(f"  # write the function in {made.file(first).name}, then"))
    print("  collectives practice")
    return 0


@app.command("list")
def list_() -> None:
    """List the exercises, and which of them are solved."""
    from collectives.course.practice import answer, registry

    here, lesson = _here(), ""
    for one in registry.read().values():
        if one.lesson != lesson:
            lesson = one.lesson
            print(lesson)
        mark = "x" if one.name in here.solved else " "
        print(f"  [{mark}] {answer.title(one):<32} {here.file(one).relative_to(here.folder)}")
    print(here.said(f"{here.count} solved"))


@app.command("reset")
def reset(name: str) -> int:
    """Make the file of an exercise anew. What is written in it is lost."""
    wanted, here = _named(name), _here()
    try:
        here.reset(wanted)
    except (ValueError, OSError) as error:
        return terminal.failed("collectives practice reset", error)
    print(here.said(f"{_shown(here.file(wanted))} is as it was at first."))
    return 0


@app.command("solution")
def solution(
    name: str,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Print our solution: once yours is right, or after a question."""
    wanted, here = _named(name), _here()
    if wanted.name not in here.solved and not yes:
        question = here.said("You have not solved it yet. Show the solution?")
        typer.confirm(question, abort=True)
    print((wanted.folder / "solution.py").read_text("utf-8"), end="")
