"""`run(step)` stands under each step of a lesson: it calls the step in a world of ranks.

It prints what every rank returned: the same text under `python`, torchrun, mpiexec and in a
notebook. It holds the values by rank, and nothing that differs from run to run. Errors and progress
go to stderr.
"""

import contextlib
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from collectives.backends import imported
from collectives.course import files, lab_output
from collectives.course.console import check_stdout, drop_stdout, print_text
from collectives.course.marks import world_of
from collectives.course.options import parser_of
from collectives.course.results import StepReport, table
from collectives.course.show import Display, show_in_notebook
from collectives.launcher import arguments
from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch
from collectives.launcher.server import start_beside_torch
from collectives.launcher.worker import launcher_worker
from collectives.semantics.check import Mismatch
from collectives.semantics.printable import printable

if files.program_runs_lessons():  # and is about to import torch
    start_beside_torch()


def run(step: Callable) -> None:
    """Call a step in the world that this process belongs to, else in a new one; print its results.

    Reads the options from the command line, except in a notebook. There the first call starts the
    process from which all ranks are forked, and which imports torch first. In a notebook failures
    are raised. Elsewhere they end the program with a message and status 1 (the step failed), 2 (bad
    usage), 3 (it cannot run here) or 130 (Ctrl-C).
    """
    if _in_notebook():
        report = run_step(step, record="tensors")
        print_text(report.text, end="")
        show_in_notebook(report)
        return
    parser = parser_of(step)
    options = vars(parser.parse_args())
    wanted = [options.pop(name) for name in ("trace", "picture", "save_picture")]
    try:
        imported.import_modules(options.pop("modules"))
        display = _shared_display(*wanted)
    except ValueError as error:
        parser.error(printable(error))
    try:
        status, _ = run_and_print(step, display, **options)
    except OSError as error:
        try:
            check_stdout(error)
        except ValueError as fault:
            parser.error(str(fault))
        raise
    if display.unwritten and not status:
        sys.exit(2)
    # A lesson's first step bears the name of its file. If it is skipped, the lesson has nothing to
    # show; a later step may be skipped.
    is_first = step.__name__ == Path(inspect.unwrap(step).__code__.co_filename).stem
    if status not in (0, 3) or (status == 3 and is_first):
        sys.exit(status)


def run_and_print(step: Callable, display: Display, **options) -> tuple[int, str]:
    """Print the report of a step and what `display` wants; if it fails, say why on stderr.

    Return an exit status and, if that is not 0, the reason in a line.
    """
    from collectives.backends.availability import Unavailable

    try:
        report = run_step(step, record=display.record, **options)
    except LaunchError as error:
        # One of a launcher's ranks prints the error: the one that raised, or one that is not hung.
        if _is_alone_or_rank(error.rank if error.kind == "raised" else int(error.rank == 0)):
            print_text(f"{step.__name__}: {error}", stderr=True)
            if launcher_worker() is None:  # else these are the calls of this rank alone
                display.add_to_trace(step.__name__, error.calls)
        return 1, str(error).splitlines()[0]
    except Mismatch as error:
        print_text(error, stderr=True)
        return 1, str(error).splitlines()[-1]
    except ValueError as error:
        if _is_alone_or_rank(0):
            print_text(f"{step.__name__}: {error}", stderr=True)
        return 3 if isinstance(error, Unavailable) else 2, str(error)
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


def run_step(
    step: Callable,
    nproc: int | None = None,
    backend: str | None = None,
    device: str | None = None,
    timeout: float = 60.0,
    record: str | None = None,
) -> StepReport:
    """Call a step in a world of ranks. In a launcher's world only rank 0 has text.

    `record`: what to record of the ranks' calls, as in `launch`. Raises LaunchError if a rank
    fails, ValueError for options that cannot work, and Mismatch if a mistake does not show its
    symptom.
    """
    worker = launcher_worker()
    timeout = max(timeout, world_of(step).seconds)
    name, speaks = step.__name__, worker is None or worker.rank == 0
    if world_of(step).lab and worker is None:
        found = step()
        return StepReport(name, lab_output.report(name, found), results=[found])
    if reason := _reason_to_skip(step, worker, nproc, backend, device):
        return StepReport(name, f"{name}: skipped: {reason}\n" if speaks else "", reason)
    if world_of(step).isolated:
        return _run_isolated(step, nproc, backend, device, timeout, record)
    with _patience(name, arguments.world_size(nproc, worker)):
        results = launch(
            step, nproc, backend=backend, device=device, timeout=timeout, record=record
        )
    text = table(name, results, world_of(step).how_known) if speaks else ""
    return StepReport(name, text, results=results, calls=results.calls if record else None)


def _reason_to_skip(
    step: Callable, worker, nproc: int | None, backend: str | None, device: str | None
) -> str | None:
    """Why the step cannot be shown: too few ranks, another backend, or one that refuses it."""
    from collectives.backends import availability, claims

    world = world_of(step)
    if world.lab:
        return "it makes its own machines, and starts the ranks there: start it without a launcher"
    if world.isolated:
        if world.backend and backend not in (None, world.backend):
            return f"it tests what is said of {world.backend}"
        if not world.symptom and nproc not in (None, world.ranks):
            return f"it starts {world.ranks} ranks of its own: leave nproc out"
        backend, device = backend or "gloo", device or "cpu"
    else:
        world_size = arguments.world_size(nproc, worker)
        if world_size < world.ranks:
            return f"it needs at least {world.ranks} ranks, this world has {world_size}"
        local_size = worker.local_world_size if worker else world_size
        backend = backend or (worker and worker.backend)
        backend, device = availability.choose(backend, device, local_size)
        if world.backend not in (None, backend):
            return f"it shows what {world.backend} does"
    return claims.refusal(step.__name__, backend, device)


def _run_isolated(
    step: Callable,
    nproc: int | None,
    backend: str | None,
    device: str | None,
    timeout: float,
    record: str | None,
) -> StepReport:
    """The report of a mistake, which must show its symptom, or of a step that must show none."""
    from collectives.course import mistakes

    name, world, worker = step.__name__, world_of(step), launcher_worker()
    if nproc not in (None, world.ranks):
        raise ValueError(
            f"nproc={nproc}, but {name} is shown with {world.ranks} ranks: leave nproc out."
        )
    with _patience(name, world.ranks):
        found = (
            mistakes.run_isolated(step, backend, device, timeout, record)
            if worker is None
            else mistakes.run_on_rank_0(worker, step, backend, device, timeout)
        )
    if found is None:
        return StepReport(name)
    outcomes, results = found
    text = mistakes.report(name, outcomes)
    # A mistake declares its symptom on plain gloo. Under another backend or DETAIL it may show
    # another one, which is printed and not judged.
    on_plain_gloo = (
        backend in (None, "gloo") and os.environ.get("TORCH_DISTRIBUTED_DEBUG") != "DETAIL"
    )
    expected = world.symptom or "goes unnoticed"
    if mistakes.symptom(outcomes) != expected and (on_plain_gloo or not world.symptom):
        raise Mismatch(f"{text}should have been: {expected}")
    text = text if world.symptom else table(name, results)
    calls = results.calls if record and worker is None else None
    return StepReport(name, text, results=results, outcomes=outcomes, calls=calls)


@contextlib.contextmanager
def _patience(name: str, world_size: int) -> Iterator[None]:
    """After a second, say on stderr that the step is still running."""
    timer = threading.Timer(
        1.0, lambda: print(f"{name}: {world_size} ranks are at work ...", file=sys.stderr)
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _in_notebook() -> bool:
    kernel = sys.modules.get("ipykernel")
    return kernel is not None and vars(kernel).get("kernelapp") is not None


def _is_alone_or_rank(rank: int) -> bool:
    """Whether no launcher started this process, or it is this rank of the launcher's world."""
    try:
        worker = launcher_worker()
    except ValueError:  # RANK is set, but nothing else of a launcher
        return True
    return worker is None or worker.rank == rank


@functools.cache
def _shared_display(*wanted) -> Display:
    """The same for all steps of a file: their trace is one file."""
    return Display(*wanted)


# A notebook imports this module before those of its chapter.
if _in_notebook():
    files.import_modules_of_notebook()
