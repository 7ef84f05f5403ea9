"""A mistake, run where it can do no harm: in a world of its own, for a short time; and what became of every rank.

A mistake and its cure have the shape of a lesson's step. But both run in new ranks, always the same number of them, also under
torchrun: a mistake would take the launcher's world down with it.
"""

import functools
import json
import linecache
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from collectives import failure, world
from collectives.proof import Mismatch

# Who still waits so many seconds after all ranks have begun is taken to wait for ever.
LIMIT = 1.5

# A rank that gives up waits this long, in seconds, for the others to write down what became of them.
_PATIENCE = 20.0

# What gloo says when the other end of a connection has gone, and what DETAIL says to those who are not to blame.
_PEER_IS_GONE = re.compile(r"closed by peer|reset by peer|Broken pipe|successfully reached monitoredBarrier")

# What differs from run to run in torch's messages: places in its source, addresses, times.
_NOISE = ((r"^\[[^]]*\]\W*", ""), (r" \[[^ ]*\]:\d+", ""), (r" at 0x[0-9a-f]+", ""), (r"\d+ ?ms\b", "n ms"))

_SENTENCE = re.compile(r".*?(?=\.?(\s+This is | *\n|\. |$))", re.DOTALL)

# What a world comes to as a whole: that of the rank which is named first here.
SYMPTOMS = {
    "dies": "dies",
    "raises": "raises an error",
    "stuck": "hangs",
    "wrong": "wrong numbers",
    "lost": "breaks off",
    "returns": "goes unnoticed",
}

_FATES = {
    "dies": "died {}",
    "raises": "raised {}",
    "stuck": "waited in {}",
    "wrong": "{}",
    "lost": "could not go on: the others had gone",
    "returns": "returned",
}

_shown = 0


@dataclass(frozen=True)
class Rank:
    """What became of a rank, a key of SYMPTOMS (`lost`: the others had gone, and it could not go on), how, and in which line."""

    became: str
    detail: str = ""
    line: int = 0

    def __str__(self) -> str:
        return _FATES[self.became].format(self.detail)


@dataclass(frozen=True)
class Own:
    """The world that a mistake (which has a symptom, on gloo) or a cure (which has none) wants for itself."""

    symptom: str | None
    ranks: int
    fresh: bool


def mistake(symptom: str, *, ranks: int, fresh: bool = False) -> Callable:
    """Mark a function as a mistake that shows this symptom on so many ranks.

    With `fresh` the ranks have no process group yet, but the environment variables that torchrun sets.
    """
    if symptom not in SYMPTOMS.values():
        raise ValueError(f"symptom={symptom!r} is not known: use one of {', '.join(SYMPTOMS.values())}.")
    return _mark(Own(symptom, ranks, fresh))


def cure(*, ranks: int, fresh: bool = False) -> Callable:
    """Mark a function as the cure of the mistake before it."""
    return _mark(Own(None, ranks, fresh))


def _mark(own: Own) -> Callable:
    def mark(step: Callable) -> Callable:
        step.own = own
        return step

    return mark


def alone(step: Callable, backend: str | None, device: str | None, timeout: float, launch: Callable) -> tuple | None:
    """`watch` in the launcher's rank 0, while its others wait and get None; without a launcher, `watch` through `launch`."""
    global _shown
    place = world.joined()
    if place is None:
        return watch(step, backend, device, timeout, launch)
    from collectives import join

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
    from collectives import start

    return start.start(fn, nproc, (), backend, device, timeout, start.default_start_method())


def watch(
    step: Callable,
    backend: str | None = None,
    device: str | None = None,
    timeout: float = 60.0,
    launch: Callable = _launch_anew,
) -> tuple[list[Rank], list | None]:
    """Run a mistake or a cure in new ranks. Return what became of each rank, and the results (None unless every rank had one).

    gloo on the CPU unless said otherwise: there a mistake has its symptom. Raises LaunchError if the world does not come to an end
    by itself, which LIMIT sees to.
    """
    from collectives import backend as backends

    backend, device = backends.choose(backend or "gloo", device, step.own.ranks)
    dead, results = {}, None
    with tempfile.TemporaryDirectory() as folder:
        watched = functools.wraps(step)(functools.partial(_watched, step=step, folder=Path(folder), limit=LIMIT))
        try:
            results = launch(watched, step.own.ranks, backend=backend, device=device, timeout=timeout)
        except failure.LaunchError as error:
            if error.kind != "died":
                raise
            dead[error.rank] = Rank("dies", f"({error.signal.name if error.signal else f'exit status {error.exitcode}'})")
        reports = _reports(Path(folder))
    return [reports.get(rank) or dead.get(rank) or Rank("lost") for rank in range(step.own.ranks)], results


def symptom(became: list[Rank]) -> str:
    """What a world came to, in two words at most."""
    return next(text for word, text in SYMPTOMS.items() if any(rank.became == word for rank in became))


def verdict(name: str, became: list[Rank]) -> str:
    """What became of a world, as text: the symptom, and a line for all ranks that share a fate."""
    lines = [f"{name}: {symptom(became)}", *(f"  {who:<12} {what}" for who, what in fates(became))]
    return "\n".join(lines) + "\n"


def fates(became: list[Rank]) -> list[tuple[str, str]]:
    """Who came to what: [("ranks 0, 2", "returned"), ...]."""
    ranks: dict[str, list[int]] = {}
    for number, rank in enumerate(became):
        # How far the others come after a death is a matter of luck.
        aside = rank.became != "dies" and any(one.became == "dies" for one in became)
        ranks.setdefault("went down with it" if aside else str(rank), []).append(number)
    return sorted(
        ((_who(numbers, became), what) for what, numbers in ranks.items()), key=lambda fate: fate[1] == "went down with it"
    )


def summary(became: list[Rank]) -> str:
    """The symptom, in which ranks, and, of an error, what the first of them says: a cell of the table of mistakes."""
    word = next(word for word, text in SYMPTOMS.items() if text == symptom(became))
    numbers = [number for number, rank in enumerate(became) if rank.became == word]
    where = "" if word == "returns" else f" on {_who(numbers, became)}"
    detail = became[numbers[0]].detail
    return SYMPTOMS[word] + where + (f": {detail}" if word == "raises" else f" {detail}" if word == "dies" else "")


def _who(numbers: list[int], became: list[Rank]) -> str:
    if len(numbers) == len(became):
        return "every rank"
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


# In the ranks.


def _watched(rank: int, world_size: int, device, step: Callable, folder: Path, limit: float):
    """Call the step, and write down what became of this rank. If it waits for too long, its process ends."""
    import torch.distributed as dist

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a process says when it dies is never the same twice
    store = dist.distributed_c10d._get_default_store()
    if store.add("here", 1) == world_size:
        store.set("all are here", "")
    store.wait(["all are here"])
    if step.own.fresh:
        _be_like_a_worker_of_torchrun(store)
        dist.destroy_process_group()
    with _limit(limit, folder, rank, world_size, step.__code__.co_filename):
        result, became = _outcome(step, rank, world_size, device)
    _report(folder, rank, became)
    return result


def _outcome(step: Callable, rank: int, world_size: int, device) -> tuple[object, Rank]:
    try:
        return step(rank, world_size, device), Rank("returns")
    except Mismatch as error:  # "rank 0/2: got .., should be .. [call]"
        return None, Rank("wrong", str(error).partition(": ")[2].rpartition(" [")[0])
    except SystemExit as error:
        return None, Rank("dies", f"(exit status {error.code or 0})", _line_of(error, step))
    except Exception as error:
        message = str(error)
        if _PEER_IS_GONE.search(message):
            return None, Rank("lost", line=_line_of(error, step))
        for pattern, instead in _NOISE:
            message = re.sub(pattern, instead, message)
        return None, Rank("raises", f"{type(error).__name__}: {_SENTENCE.match(message)[0]}", _line_of(error, step))


def _line_of(error: BaseException, step: Callable) -> int:
    """The line of the step's own file, innermost first, that an exception comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == step.__code__.co_filename), 0)


def _be_like_a_worker_of_torchrun(store) -> None:
    """Say in the environment where the world's store is, as torchrun does: there `init_process_group()` looks for it."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    os.environ |= {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


@contextmanager
def _limit(seconds: float, folder: Path, rank: int, world_size: int, file: str) -> Iterator[None]:
    """A rank that waits in C++ cannot be interrupted: so note the line where it stands, and end the process."""
    main, is_over = threading.get_ident(), threading.Event()

    def give_up() -> None:
        is_over.set()
        line = _line(sys._current_frames()[main], file)
        code = linecache.getline(file, line).partition("  #")[0].strip()
        _report(folder, rank, Rank("stuck", code or "an unknown place", line))
        until = time.monotonic() + _PATIENCE
        while len(_reports(folder)) < world_size and time.monotonic() < until:  # the parent kills all when the first one ends
            time.sleep(0.01)
        os._exit(0)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()
    if is_over.is_set():  # another rank has ended, and so freed this one: but its time was up before
        timer.join()


def _line(frame, file: str) -> int:
    """The line of the step's own file, innermost first, that a stack stands in."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame else 0


def _report(folder: Path, rank: int, became: Rank) -> None:
    draft = folder / f"{rank}.draft"
    draft.write_text(json.dumps([became.became, became.detail, became.line]))
    draft.rename(draft.with_suffix(".json"))


def _reports(folder: Path) -> dict[int, Rank]:
    return {int(path.stem): Rank(*json.loads(path.read_text())) for path in folder.glob("*.json")}
