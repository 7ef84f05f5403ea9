"""`collectives verify`: ask a backend, and write its certificate."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn

from collectives.cli import terminal
from collectives.cli.terminal import Modules
from collectives.course.console import print_text
from collectives.course.rich_console import console
from collectives.words import counted

STATUSES = (
    "Exit status: 0 nothing is wrong, 1 something is, 2 bad usage, 3 the backend cannot run here, "
    "130 Ctrl-C."
)


def verify(
    backend: Annotated[str, typer.Argument(help="Its name, as init_process_group takes it.")],
    modules: Modules = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="No failures and few long messages: about a minute.")
    ] = False,
    sizes: Annotated[
        str, typer.Option(metavar="N,N", help="Also messages of so many elements.")
    ] = "",
    world_sizes: Annotated[
        str, typer.Option(metavar="N,N", help="Other numbers of ranks; 2,4.")
    ] = "",
    threads: Annotated[
        bool, typer.Option("--threads", help="Also calls from two threads.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with the .json of another certificate."),
    ] = None,
    claims_file: Annotated[
        Path | None,
        typer.Option("--claims", metavar="FILE", help="What you claim of calls that do not match."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the certificate goes.")
    ] = Path(),
) -> int:
    """Ask a backend, whoever wrote it, and write what it does: BACKEND.certificate.json and .md.

    It is asked about every call with every dtype and reduction, at several
    lengths, with values that narrower dtypes cannot hold, with several calls
    under way, and with peers that fail. Whatever is wrong is told once for each
    cause, with the smallest case as a program.
    """
    from collectives.backends import availability
    from collectives.verify import asking, certificate, stated
    from collectives.verify.plan import Plan

    try:
        before = certificate.read(against) if against else None
        availability.import_modules(modules or ())
        name = backend.lower()
        ranks = _numbers("--world-sizes", world_sizes, 1) or (2, 4)
        name, device = availability.choose(name, None, max(ranks))
        lesson_sizes = ranks if quick or world_sizes else (1, 2, 3, 4, 5)
        plan = Plan(
            name,
            device,
            quick,
            ranks,
            _numbers("--sizes", sizes, 0),
            threads,
            lesson_sizes,
            stated.load(claims_file),
        )
    except (ValueError, OSError) as error:
        return terminal.failed("collectives verify", error)
    begin = time.monotonic()
    columns = TextColumn("{task.description}"), BarColumn()
    screen = console(stderr=True)
    last, wrong = begin, 0
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("asking", total=1.0)

        def progress(answers, share: float) -> None:
            nonlocal last, wrong
            now = time.monotonic()
            wrong += sum(answer.is_fault for answer in answers)
            left = f"about {asking.left(share, begin):.0f} s left"
            text = f"{share:.0%}, {left}, {counted(wrong, 'wrong answer')} so far"
            bar.update(task, completed=share, description=text)
            if not screen.is_terminal and now - last > 15:
                last = now
                print_text(text, stderr=True, flush=True)

        answers = asking.ask(plan, progress)
    new_certificate = certificate.Certificate(plan, answers, time.monotonic() - begin)
    try:
        files = new_certificate.write(out)
    except OSError as error:
        return terminal.failed(
            "collectives verify", ValueError(f"{out} cannot be written: {error}")
        )
    for cause in new_certificate.causes:
        print_text(f"- {cause}")
    if before is not None:
        lines = certificate.differences(before, new_certificate.data()) or ["nothing differs"]
        print_text("\n".join([f"against {against}:", *(f"  {line}" for line in lines)]))
    print_text(f"{len(new_certificate.causes)} wrong; {', '.join(map(str, files))}")
    if new_certificate.status == 3:
        reason = next((answer.detail for answer in answers if answer.detail), "")
        print_text(f"collectives verify: {backend} cannot run here: {reason}", stderr=True)
    sys.stdout.flush()
    return new_certificate.status


def _numbers(option: str, text: str, least: int) -> tuple[int, ...]:
    """ValueError if they cannot be read."""
    try:
        found = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"{option} {text}: write whole numbers with commas, as in 2,4.") from None
    if any(number < least for number in found):
        raise ValueError(f"{option} {text}: no number may be below {least}.")
    return found
