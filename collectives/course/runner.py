"""`run(step)` stands under each step of a lesson: it calls the step in a world of ranks.

It prints what every rank returned: the same text under `python`, torchrun, mpiexec and in a
notebook. It holds the values by rank, and nothing that differs from run to run. Errors and progress
go to stderr.
"""

import argparse
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from collectives.backends import availability
from collectives.backends.availability import NAMES, Unavailable, add_import_option
from collectives.course import files
from collectives.course.console import check_stdout, drop_stdout, print_text
from collectives.course.marks import WorldSpec, world_of
from collectives.course.results import StepReport, lab_table, table
from collectives.course.show import Display
from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch_in
from collectives.launcher.server import start_beside_torch
from collectives.launcher.worker import is_alone_or_rank, launcher_worker
from collectives.launcher.world import World
from collectives.recording.ending import Ending
from collectives.semantics.check import Mismatch
from collectives.words import printable

if files.program_runs_lessons():  # and is about to import torch
    start_beside_torch()


def run(step: Callable, *, folded: bool = False) -> None:
    """Call a step in the world that this process belongs to, else in a new one; print its results.

    With `folded` a notebook shows them behind a click: its reader is asked a question first.

    Reads the options from the command line, except in a notebook. There the first call starts the
    process from which all ranks are forked, and which imports torch first. In a notebook failures
    are raised. Elsewhere they end the program with a message and status 1 (the step failed), 2 (bad
    usage), 3 (it cannot run here) or 130 (Ctrl-C).

    >>> def hello(rank, world_size, device):
    ...     return f"I am {rank} of {world_size}"
    >>> run(hello)  # doctest: +SKIP
    """
    if _in_notebook():
        report = run_step(step, World.chosen(), record="tensors")
        from collectives.course import in_notebook

        in_notebook.show(report, folded)
        return
    lesson, typed = step.__module__, sys.argv[1:]
    _, display = _words(lesson, *typed)
    try:
        world = None if world_of(step).lab else _world(lesson, *typed)
    except ValueError as error:
        status, _ = _refused(step.__name__, error)
        sys.exit(status)
    try:
        status, _ = run_and_print(step, display, world)
    except OSError as error:
        try:
            check_stdout(error)
        except ValueError as fault:
            _parser_of(lesson).error(str(fault))
        raise
    if display.unwritten and not status:
        sys.exit(2)
    # A step may be skipped, but a lesson that begins so has nothing to show.
    display.has_begun = display.has_begun or not status
    if status not in (0, 3) or not display.has_begun:
        sys.exit(status)


def _parser_of(lesson: str) -> argparse.ArgumentParser:
    """The options of the lesson in this module; its title cell is the help text."""
    parser = argparse.ArgumentParser(
        description=sys.modules[lesson].__doc__ or "",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", "--nproc", type=int, help="ranks to start (default 4)")
    parser.add_argument(
        "--backend",
        help=f"{NAMES} (default: nccl where every rank can have a GPU, else gloo)",
    )
    parser.add_argument("--device", help="cpu or cuda (default: what suits the backend)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        help="time limit for each step, in seconds (default %(default)g)",
    )
    add_import_option(parser.add_argument)
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.json",
        help="write who was when in which call, for ui.perfetto.dev",
    )
    parser.add_argument("--picture", action="store_true", help="show where every number went")
    parser.add_argument(
        "--save-picture", type=Path, metavar="FILE.svg|png", help="write a picture of each step"
    )
    return parser


@functools.cache
def _words(lesson: str, *typed: str) -> tuple[argparse.Namespace, Display]:
    """What the command line asks for: parsed once, for all steps of a lesson."""
    parser = _parser_of(lesson)
    words = parser.parse_args(typed)
    try:
        availability.import_modules(words.modules)
        display = Display(words.trace, words.picture, words.save_picture)
    except ValueError as error:
        parser.error(printable(error))
    return words, display


@functools.cache
def _world(lesson: str, *typed: str) -> World:
    words, _ = _words(lesson, *typed)
    world = World.chosen(words.nproc, words.backend, words.device, words.timeout)
    print_note(world)
    return world


def print_note(world: World) -> None:
    """On stderr, why the GPUs of this machine are not used."""
    if world.note and is_alone_or_rank(0):
        print_text(world.note, stderr=True)


def _refused(name: str, error: ValueError) -> tuple[int, str]:
    """Say why a step cannot run: its exit status, and the reason."""
    if is_alone_or_rank(0):
        print_text(f"{name}: {error}", stderr=True)
    return 3 if isinstance(error, Unavailable) else 2, str(error)


def run_and_print(step: Callable, display: Display, world: World | None) -> tuple[int, str]:
    """Print the report of a step and what `display` wants; if it fails, say why on stderr.

    Return an exit status and, if that is not 0, the reason in a line.
    """
    try:
        report = run_step(step, world, display.record)
    except LaunchError as error:
        # One of a launcher's ranks prints the error: the one that raised, or one that is not hung.
        if is_alone_or_rank(error.rank if error.kind is Ending.RAISED else int(error.rank == 0)):
            print_text(f"{step.__name__}: {error}", stderr=True)
            if launcher_worker() is None:  # else these are the calls of this rank alone
                display.add_to_trace(step.__name__, error.calls)
        return 1, error.headline
    except Mismatch as error:
        print_text(error, stderr=True)
        return 1, str(error).splitlines()[-1]
    except ValueError as error:
        return _refused(step.__name__, error)
    except KeyboardInterrupt:
        print(f"\n{step.__name__}: interrupted", file=sys.stderr)
        return 130, "interrupted"
    try:
        print_text(report.text, end="", flush=True)
        if report.text and not report.skipped:  # of a launcher's ranks, only rank 0 has text
            display.show(report)
    except BrokenPipeError:  # the reader has seen enough, for example `head`
        drop_stdout()
    return (3, report.skipped) if report.skipped else (0, "")


def run_step(step: Callable, world: World | None, record: str | None = None) -> StepReport:
    """Call a step in a world of ranks. In a launcher's world only rank 0 has text.

    A step in a lab makes its own machines, and needs no `world`.

    `record`: what to record of the ranks' calls, as in `launch`. Raises LaunchError if a rank
    fails, ValueError for a world that does not suit the step, and Mismatch if a mistake does not
    show its symptom.
    """
    name, needed, speaks = step.__name__, world_of(step), is_alone_or_rank(0)
    if world is None or needed.lab:
        return _run_in_lab(step, speaks)
    world = replace(world, timeout=max(world.timeout, needed.seconds))
    if reason := _reason_to_skip(name, needed, world):
        return _skipped(name, reason, speaks)
    if needed.isolated:
        return _run_isolated(step, world, record)
    with _patience(name, world.nproc):
        results = launch_in(world, step, record=record)
    text = table(name, results, needed.how_known) if speaks else ""
    return StepReport(name, text, results=results, calls=results.calls if record else None)


def _skipped(name: str, reason: str, speaks: bool) -> StepReport:
    return StepReport(name, f"{name}: skipped: {reason}\n" if speaks else "", reason)


def _run_in_lab(step: Callable, speaks: bool) -> StepReport:
    if launcher_worker() is not None:
        reason = (
            "it makes its own machines, and starts the ranks there: start it without a launcher"
        )
        return _skipped(step.__name__, reason, speaks)
    found = step()
    return StepReport(step.__name__, lab_table(step.__name__, found), results=[found])


def _reason_to_skip(name: str, needed: WorldSpec, world: World) -> str | None:
    """Why the step cannot be shown: too few ranks, another backend, or one that refuses it."""
    from collectives.backends import claims

    if not needed.isolated:
        if world.nproc < needed.ranks:
            return f"it needs at least {needed.ranks} ranks, this world has {world.nproc}"
        if needed.backend not in (None, world.backend):
            return f"it shows what {needed.backend} does"
        return claims.refusal(name, world.backend, world.device)
    backend, device = world.named("backend"), world.named("device")
    if needed.backend and backend not in (None, needed.backend):
        return f"it tests what is said of {needed.backend}"
    if not needed.symptom and world.named("nproc") not in (None, needed.ranks):
        return f"it starts {needed.ranks} ranks of its own: leave nproc out"
    backend = backend or "gloo"
    return claims.refusal(name, backend, device or availability.devices_of(backend)[0])


def _run_isolated(step: Callable, world: World, record: str | None) -> StepReport:
    """The report of a mistake, which must show its symptom, or of a step that must show none."""
    from collectives.course import mistakes

    name, needed, worker = step.__name__, world_of(step), world.worker
    if world.named("nproc") not in (None, needed.ranks):
        raise ValueError(
            f"nproc={world.nproc}, but {name} is shown with {needed.ranks} ranks: leave nproc out."
        )
    own_world = mistakes.own_world(step, world)
    with _patience(name, needed.ranks):
        ended = (
            mistakes.run_isolated(step, own_world, record)
            if worker is None
            else mistakes.run_on_rank_0(worker, step, own_world)
        )
    if ended is None:
        return StepReport(name)
    outcomes, results = ended
    text = mistakes.report(name, outcomes)
    # A mistake declares its symptom on plain gloo. Under another backend or DETAIL it may show
    # another one, which is printed and not judged.
    on_plain_gloo = (
        world.named("backend") in (None, "gloo")
        and os.environ.get("TORCH_DISTRIBUTED_DEBUG") != "DETAIL"
    )
    expected = needed.symptom or "goes unnoticed"
    if mistakes.symptom(outcomes) != expected and (on_plain_gloo or not needed.symptom):
        raise Mismatch(f"{text}should have been: {expected}")
    text = text if needed.symptom else table(name, results)
    if world.named("backend") not in (None, own_world.backend):
        text += f"  on {own_world.backend}: fresh ranks choose their backend themselves\n"
    calls = results.calls if record and worker is None else None
    return StepReport(name, text, results=results, outcomes=outcomes, calls=calls)


@contextlib.contextmanager
def _patience(name: str, world_size: int) -> Iterator[None]:
    """After a second, say that the step still runs: on stderr, in a notebook until it ends."""
    who = "1 rank is" if world_size == 1 else f"{world_size} ranks are"
    text = f"{name}: {who} at work ..."
    if _in_notebook():
        from collectives.course import in_notebook

        with in_notebook.note_after(1.0, text):
            yield
        return
    timer = threading.Timer(1.0, lambda: print(text, file=sys.stderr))
    timer.daemon = True
    if is_alone_or_rank(0):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _in_notebook() -> bool:
    kernel = sys.modules.get("ipykernel")
    return kernel is not None and vars(kernel).get("kernelapp") is not None


# A notebook imports this module before those of its chapter.
if _in_notebook():
    files.import_modules_of_notebook()
