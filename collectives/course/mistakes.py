"""Run a mistake where it can do no harm: in a world of its own, for a short time.

A mistake and its cure have the shape of a lesson's step. But both always run in new ranks, also
under torchrun: a mistake would break the launcher's world. So do steps whose ranks are fresh: the
ranks of a launcher have met already.
"""

import functools
import itertools
import signal
import socket
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from collectives.backends import availability
from collectives.course import outcome
from collectives.course.marks import SYMPTOMS, world_of
from collectives.course.outcome import RankOutcome
from collectives.launcher import start
from collectives.launcher.call_record import Results
from collectives.launcher.failure import LaunchError
from collectives.launcher.rank_spec import LaunchSpec
from collectives.launcher.watch import LaunchWatch
from collectives.launcher.worker import Worker, launcher_store
from collectives.launcher.world import World
from collectives.recording.ending import Ending
from collectives.words import ranks

# Who waits for the ranks of a mistake waits so many seconds longer than they have.
_GRACE = 15.0

# A rank of a mistake that still waits so many seconds after all ranks have begun hangs.
_HANGS_AFTER = 1.5

_numbers = itertools.count(1)


def own_world(step: Callable, world: World | None = None) -> World:
    """The new ranks of an isolated step, on gloo and the CPU unless the user has named others.

    Fresh ranks are always there, as the step itself chooses its backend.
    """
    needed, backend, device = world_of(step), None, None
    if world is not None and not needed.fresh:
        backend, device = world.named("backend"), world.named("device")
    backend, device = availability.choose(backend or "gloo", device, needed.ranks)
    return World(needed.ranks, backend, device, world.timeout if world else World.timeout)


def run_isolated(
    step: Callable, world: World, record: str | None = None
) -> tuple[list[RankOutcome], Results]:
    """Run an isolated step in its own world.

    Return the outcome of each rank, and the results if no rank died, else none. `record`: what the
    results and a LaunchError hold besides, as of `launch`. A rank of a step without a symptom hangs
    if it has not ended within the time limit. Raises LaunchError if the world does not end by
    itself.
    """
    needed = world_of(step)
    agent = _agent_store() if needed.fresh else None  # must live as long as the ranks
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        in_rank = functools.partial(
            outcome.run_and_record,
            step=step,
            folder=folder,
            agent_port=agent and agent.port,
            limit=_HANGS_AFTER if needed.symptom else world.timeout,
        )
        # The ranks first say themselves that they hang.
        patient = replace(world, timeout=world.timeout + _GRACE)
        spec = LaunchSpec(patient, functools.wraps(step)(in_rank))
        died = {}
        try:
            results = _start(spec, record)
        except LaunchError as error:
            if error.kind is not Ending.DIED:
                raise
            results = Results()
            results.calls, results.risky_calls = error.calls, error.risky_calls
            died[error.rank] = _death(error, outcome.stderr_of(folder, error.rank))
        recorded = died | outcome.read_outcomes(folder)
    outcomes = [recorded.get(rank, RankOutcome(Ending.PEER_LOST)) for rank in range(world.nproc)]
    return outcomes, results


def _start(spec: LaunchSpec, record: str | None) -> Results:
    """`collectives.launch`, but it never joins a launcher's world."""
    return start.start(spec, LaunchWatch(at_once=False, record=record) if record else None)


def run_on_rank_0(
    worker: Worker, step: Callable, world: World
) -> tuple[list[RankOutcome], Results] | None:
    """`run_isolated` by rank 0 of a launcher's world. The other ranks wait, and return None."""
    store = launcher_store(worker, world.timeout)
    done = f"collectives/mistake/{next(_numbers)}"
    if worker.rank:
        store.wait([done], timedelta(seconds=world.timeout + 2 * _GRACE))
        return None
    try:
        return run_isolated(step, world)
    finally:
        store.set(done, "")


def _death(error: LaunchError, stderr: Path) -> RankOutcome:
    cause = signal.Signals(error.signal).name if error.signal else f"exit status {error.exitcode}"
    text = stderr.read_text(errors="replace") if stderr.exists() else ""
    return RankOutcome(Ending.DIED, f"({cause})", text=text, signal=error.signal or 0)


def _agent_store():
    """The store that torchrun's agent would hold, on the loopback interface alone."""
    import torch.distributed as dist

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def symptom(outcomes: list[RankOutcome]) -> str:
    """What the world as a whole shows: one of SYMPTOMS.values()."""
    return SYMPTOMS[_worst_kind(outcomes)]


def _worst_kind(outcomes: list[RankOutcome]) -> Ending:
    kinds = {one.kind for one in outcomes}
    # A rank that left shows nothing by itself: the ranks that lose it do.
    return next((kind for kind in SYMPTOMS if kind in kinds), Ending.RETURNED)


def report(name: str, outcomes: list[RankOutcome]) -> str:
    """The symptom, and one line for all ranks with the same outcome."""
    lines = [f"  {who:<12} {what}" for who, what in grouped(outcomes)]
    return "\n".join([f"{name}: {symptom(outcomes)}", *lines]) + "\n"


def grouped(outcomes: list[RankOutcome]) -> list[tuple[str, str]]:
    """The ranks with the same outcome together: [("ranks 0,2", "returned"), ...].

    If a rank died, it stands first, and how far the others came is not said: that is luck.
    """
    deaths = [str(one) for one in outcomes if one.kind is Ending.DIED]
    by_text: dict[str, list[int]] = {text: [] for text in deaths}
    for rank, text in enumerate(map(str, outcomes)):
        if deaths and text not in deaths:
            text = "ended with it"
        by_text.setdefault(text, []).append(rank)
    return [(_ranks(numbers, len(outcomes)), text) for text, numbers in by_text.items()]


def summary(outcomes: list[RankOutcome]) -> str:
    """The symptom, on which ranks, and the first rank's error: a cell of the table of mistakes."""
    worst = _worst_kind(outcomes)
    if worst is Ending.RETURNED:
        return SYMPTOMS[worst]
    numbers = [rank for rank, one in enumerate(outcomes) if one.kind == worst]
    detail = outcomes[numbers[0]].detail
    details = {Ending.RAISED: f": {detail}", Ending.DIED: f" {detail}"}
    return f"{SYMPTOMS[worst]} on {_ranks(numbers, len(outcomes))}{details.get(worst, '')}"


def _ranks(numbers: list[int], world_size: int) -> str:
    if len(numbers) == world_size:
        return "every rank"
    return ranks(numbers)
