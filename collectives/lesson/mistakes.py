"""A mistake, run where it can do no harm: in a world of its own, for a short time; and what became of every rank.

A mistake and its cure have the shape of a lesson's step. But both run in new ranks, always the same number of them, also under
torchrun: a mistake would take the launcher's world down with it.
"""

import functools
import socket
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from collectives.launcher import failure
from collectives.launcher import place as world
from collectives.lesson import outcome
from collectives.lesson.outcome import Fate
from collectives.lesson.step import SYMPTOMS

# Those who wait while rank 0 of a launcher's world watches a mistake have this much more time, in seconds.
_PATIENCE = 30.0

_shown = 0


def alone(
    step: Callable, backend: str | None, device: str | None, timeout: float, launch: Callable
) -> tuple | None:
    """`watch` in the launcher's rank 0, while its others wait and get None; without a launcher, `watch` through `launch`."""
    global _shown
    place = world.launcher_place()
    if place is None:
        return watch(step, backend, device, timeout, launch)
    from collectives.launcher import join

    store, _shown = join.launcher_store(place, timeout), _shown + 1
    if place.rank:
        store.wait([f"collectives/mistake/{_shown}"], timedelta(seconds=timeout + _PATIENCE))
        return None
    try:
        return watch(step, backend, device, timeout)
    finally:
        store.set(f"collectives/mistake/{_shown}", "")


def _launch_anew(fn: Callable, nproc: int, *, backend: str, device: str, timeout: float) -> list:
    """`collectives.launch`, which never joins a launcher's world."""
    from collectives.launcher import start
    from collectives.launcher.launch_spec import LaunchSpec

    return start.start(LaunchSpec(fn, nproc, (), backend, device, timeout))


def watch(
    step: Callable,
    backend: str | None = None,
    device: str | None = None,
    timeout: float = 60.0,
    launch: Callable = _launch_anew,
) -> tuple[list[Fate], list | None]:
    """Run a mistake or a cure in new ranks. Return what became of each rank, and the results (None unless every rank had one).

    gloo on the CPU unless said otherwise: there a mistake has its symptom. Raises LaunchError if the world does not come to an end
    by itself, which LIMIT sees to.
    """
    from collectives.backends import availability as backends

    backend, device = backends.choose(backend or "gloo", device, step.own.ranks)
    dead, results = {}, None
    agent = _agent() if step.own.fresh else None
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"step": step, "folder": Path(folder), "agent": agent and agent.port}
        watched = functools.wraps(step)(functools.partial(outcome.watched, **arguments))
        try:
            results = launch(
                watched, step.own.ranks, backend=backend, device=device, timeout=timeout
            )
        except failure.LaunchError as error:
            if error.kind != "died":
                raise
            dead[error.rank] = Fate(
                "dies",
                f"({error.signal.name if error.signal else f'exit status {error.exitcode}'})",
            )
        reports = outcome.reports(Path(folder))
    return [
        reports.get(rank) or dead.get(rank) or Fate("lost") for rank in range(step.own.ranks)
    ], results


def _agent():
    """The store that torchrun's agent would hold, on loopback alone."""
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


def symptom(became: list[Fate]) -> str:
    """What a world came to, in two words or so."""
    return SYMPTOMS[_worst(became)]


def _worst(became: list[Fate]) -> str:
    return next(word for word in SYMPTOMS if any(one.became == word for one in became))


def verdict(name: str, became: list[Fate]) -> str:
    """What became of a world, as text: the symptom, and a line for all ranks that share a fate."""
    lines = [f"{name}: {symptom(became)}", *(f"  {who:<12} {what}" for who, what in fates(became))]
    return "\n".join(lines) + "\n"


def fates(became: list[Fate]) -> list[tuple[str, str]]:
    """Who came to what: [("ranks 0, 2", "returned"), ...]."""
    dead = [str(one) for one in became if one.became == "dies"]
    ranks: dict[str, list[int]] = {text: [] for text in dead}
    for number, one in enumerate(map(str, became)):
        # How far the others come while one dies is a matter of luck.
        ranks.setdefault("went down with it" if dead and one not in dead else one, []).append(
            number
        )
    return [(_who(numbers, became), what) for what, numbers in ranks.items()]


def summary(became: list[Fate]) -> str:
    """The symptom, in which ranks, and, of an error, what the first of them says: a cell of the table of mistakes."""
    worst = _worst(became)
    if worst == "returns":
        return SYMPTOMS[worst]
    numbers = [number for number, one in enumerate(became) if one.became == worst]
    detail = became[numbers[0]].detail
    return f"{symptom(became)} on {_who(numbers, became)}" + {
        "raises": f": {detail}",
        "dies": f" {detail}",
    }.get(worst, "")


def _who(numbers: list[int], became: list[Fate]) -> str:
    if len(numbers) == len(became):
        return "every rank"
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
