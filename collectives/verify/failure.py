"""A peer that dies, stops or never comes: every other rank must return or raise within a limit.

The world of such a question is a group of its own with a limit of 2 s. Its ranks note what they do
in files, and the parent, which reads these, kills the peer when its time has come.
"""

import contextlib
import faulthandler
import functools
import json
import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.launcher import start
from collectives.launcher.failure import LaunchError
from collectives.launcher.rank_spec import LaunchSpec, pickle_by_value
from collectives.launcher.world import World
from collectives.semantics.cell import DetailedCell
from collectives.semantics.check import Mismatch
from collectives.semantics.forms import FORMS, called
from collectives.semantics.probe import ProbedCall, Silence, case_of, first_line
from collectives.verify import worlds
from collectives.verify.at_once import CALLS, needs
from collectives.verify.in_rank import together
from collectives.verify.question import NOT_ASKED, Answer, Question

# The limit of the group, and when a rank must have returned on a busy machine, in seconds.
LIMIT = 2.0
PATIENCE = LIMIT + 8.0
_RANKS = 3
# For one world, with all that follows.
_WHOLE = 100.0

FATES = {
    "dies before": "rank {victim} dies before the call",
    "dies in": "rank {victim} dies in the call",
    "dies after": "rank {victim} dies after the call",
    "stops": "rank {victim} stops before the call",
    "never comes": "rank {victim} never makes the call",
}
_TRIES = 3
# After so many hangs, which take 10 s each, no more cases are asked.
_HANGS = 8
# Too many for any buffer below.
_ELEMENTS = 1_000_003


def questions(backend: str, device: str) -> Iterator[Question]:
    for name in (*CALLS, "barrier", "recv"):
        if not called(FORMS[name]):
            continue
        roots = name in ("broadcast", "scatter", "reduce", "gather")
        for victim in (0, 2) if roots else (2,):
            for fate, text in FATES.items():
                run = functools.partial(suffer, name=name, fate=fate, victim=victim)
                case = text.format(victim=victim) + (", the root" if roots and not victim else "")
                yield Question(
                    "failure",
                    name,
                    case,
                    _RANKS,
                    run,
                    (("fate", fate), ("victim", victim)),
                    60.0,
                    ("failure", name, fate, victim, backend),
                )


def suffer(
    rank: int,
    size: int,
    device: torch.device,
    folder: str,
    backend: str,
    name: str,
    fate: str,
    victim: int,
    silence: Silence,
) -> None:
    """What runs in a rank: one call with a peer that fails, and what works afterwards."""
    torch.set_num_threads(1)
    note = functools.partial(_note, open(f"{folder}/{rank}.notes", "a", buffering=1))  # noqa: SIM115
    stack = open(f"{folder}/{rank}.stack", "a")  # noqa: SIM115  faulthandler writes into it
    watch = functools.partial(faulthandler.dump_traceback_later, exit=True, file=stack)
    watch(40.0)
    store = c10d._get_default_store()
    dist.destroy_process_group()
    _enter(backend, store, "fate", rank, size, LIMIT)
    call = _call(rank, size, device, backend, name)
    note("ready")
    _wait(folder, "all ready")
    if rank == victim:
        _fail(fate, note, call)
    if fate in ("dies before", "stops") or (fate == "dies in" and rank == _late(name, victim)):
        _wait(folder, "go")
    watch(PATIENCE)
    begin = time.monotonic()
    outcome = _outcome(call)
    note("outcome", *outcome, time.monotonic() - begin)
    watch(PATIENCE)
    note("ending")
    if fate in ("dies in", "stops") and dist.group.WORLD is not None:
        dist.group.WORLD.abort()
    note("aborted")
    dist.destroy_process_group()
    note("ended")
    watch(40.0)
    others = [other for other in range(size) if other != victim]
    _enter(backend, store, "again", others.index(rank), len(others), 30.0)
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    note("again", total.item() == len(others))
    together(store, "leaving", len(others))


def _enter(backend: str, store: Any, name: str, rank: int, size: int, limit: float) -> None:
    own = dist.PrefixStore(name, store)
    seconds = timedelta(seconds=limit)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=seconds)
    together(store, f"{name} entered", size)


def _late(name: str, victim: int) -> int:
    """Who comes last where a rank dies in the call: the victim waits for it."""
    return 0 if victim != 0 else 1


def _call(rank: int, size: int, device: torch.device, backend: str, name: str) -> Any:
    if name == "barrier":
        return _Barrier()
    if name == "recv":
        return _Message(device)
    form = FORMS[name]
    op = "SUM" if form.reduces else None
    cell = DetailedCell(
        form.collective, name, backend, device.type, "float32", op, size, elements=_ELEMENTS
    )
    return ProbedCall(cell, case_of(rank, device, cell, dist.group.WORLD))


class _Barrier:
    """It brings only the news that all have come."""

    def begin(self) -> None:
        dist.barrier()

    def complete(self) -> None:
        pass

    check = complete


class _Message(_Barrier):
    """From the last rank to all others."""

    def __init__(self, device: torch.device):
        self.data = torch.zeros(_ELEMENTS, device=device)

    def begin(self) -> None:
        last = dist.get_world_size() - 1
        if dist.get_rank() < last:
            dist.recv(self.data, last)
            return
        for other in range(last):
            dist.send(self.data.fill_(7), other)

    def check(self) -> None:
        if not bool((self.data == 7).all()):
            raise Mismatch("the message did not come")


def _outcome(call: Any) -> tuple[str, str]:
    """How the call ended in this rank: "right", "wrong" or "raised", and with what."""
    try:
        call.begin()
        call.complete()
    except Exception as error:
        return "raised", first_line(error)
    try:
        call.check()
    except Mismatch as error:
        return "wrong", str(error)
    return "right", ""


def _fail(fate: str, note: Any, call: Any) -> None:
    if fate == "dies before":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fate in ("dies in", "dies after"):
        note("begun")
        call.begin()
        call.complete()
        note("returned")
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # never comes


def _note(file: Any, *words: Any) -> None:
    file.write(json.dumps(words) + "\n")


def _wait(folder: str, name: str) -> None:
    while not os.path.exists(f"{folder}/{name}"):
        time.sleep(0.002)


class Sufferer:
    """Asks the questions on failure, each in a world of its own."""

    def __init__(self, backend: str, device: str):
        self.backend, self.device = backend, device
        self.hangs = 0

    def ask(self, question: Question) -> Answer:
        given = question.run.keywords  # type: ignore[attr-defined]
        if self.hangs >= _HANGS:
            return Answer(question, NOT_ASKED, f"{_HANGS} cases of a peer that fails have hung")
        for _ in range(_TRIES):
            try:
                notes = self._world(question)
            except (LaunchError, OSError) as error:
                answer = Answer(question, NOT_ASKED, f"no world started: {error}")
                continue
            if given["fate"] == "dies in" and "returned" in notes["words"][given["victim"]]:
                reason = f"the rank had returned before it could be killed, {_TRIES} times"
                answer = Answer(question, NOT_ASKED, reason)
                continue
            answer = judge(question, notes)
            if answer.state != NOT_ASKED:
                break
        self.hangs += answer.state == "hangs"
        return answer

    def _world(self, question: Question) -> dict[str, Any]:
        world = World(question.ranks, self.backend, self.device, 120.0)
        with tempfile.TemporaryDirectory(prefix="collectives-verify-") as name:
            run = functools.partial(
                question.run, folder=name, backend=self.backend, silence=Silence()
            )
            ranks = start.Ranks(LaunchSpec(world, run), None)
            try:
                ranks.start(pickle_by_value(run, ()))
                words = question.run.keywords  # type: ignore[attr-defined]
                errors = _supervise(ranks, Path(name), words["fate"], words["victim"])
            finally:
                ranks.close()
            return _read(Path(name), question.ranks) | {"errors": errors}


def _supervise(ranks: start.Ranks, folder: Path, fate: str, victim: int) -> dict[int, str]:
    """Let the victim fail at its time, and wait until the others have ended.

    Returns what ranks have raised.
    """
    ended: dict[int, str] = {}
    others = set(ranks.children) - {victim}
    until = time.monotonic() + _WHOLE
    while time.monotonic() < until and not others <= ended.keys():
        with contextlib.suppress(queue.Empty):
            event = ranks.events.get(timeout=0.01)
            text = ""
            if event.kind == "raised":
                text = cloudpickle.loads(event.value).summary.partition("\n")[0]
            elif event.kind == "ended" and event.value:
                text = f"its process ended with status {event.value}"
            if text or event.rank not in ended:
                ended[event.rank] = text
        words = _read(folder, len(ranks.children))["words"]
        if all("ready" in written for written in words):
            (folder / "all ready").touch()
            process = ranks.children[victim].process
            pid = process.pid if process is not None else None
            if fate == "dies in" and victim not in ended and "begun" in words[victim] and pid:
                time.sleep(0.05)
                if "returned" not in _read(folder, len(ranks.children))["words"][victim]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if victim in ended or (fate == "stops" and pid and _is_stopped(pid)):
                (folder / "go").touch()
    return ended


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def _read(folder: Path, ranks: int) -> dict[str, Any]:
    """What each rank noted, by the first word of the note, and the stacks of those that hung."""
    words: list[dict[str, list[Any]]] = []
    for rank in range(ranks):
        words.append({})
        for line in worlds.text_of(folder / f"{rank}.notes").splitlines():
            with contextlib.suppress(ValueError):  # the rank died while it wrote
                word, *rest = json.loads(line)
                words[-1][word] = rest
    stacks = [worlds.text_of(folder / f"{rank}.stack") for rank in range(ranks)]
    return {"words": words, "stacks": stacks}


def judge(question: Question, notes: dict[str, Any]) -> Answer:
    """What the survivors did: whether it is right, and if so, what exactly."""
    given = question.run.keywords  # type: ignore[attr-defined]
    name, fate, victim = (given[word] for word in ("name", "fate", "victim"))
    reports = []
    for rank, words in enumerate(notes["words"]):
        if rank == victim:
            continue
        error, stack = notes["errors"].get(rank, ""), notes["stacks"][rank]
        where = worlds.place_in(stack)
        if "outcome" not in words:
            if not stack and "ready" in words and error:
                return Answer(question, "crashes", f"rank {rank}: {error}")
            if not stack or "ready" not in words:
                return Answer(
                    question, NOT_ASKED, f"the group could not be made: {error or 'why?'}"
                )
            text = f"rank {rank} still waits after {PATIENCE:g} s; the group's limit is 2 s"
            return Answer(question, "hangs", f"{text}{where and f', at {where}'}", where)
        kind, text, seconds = words["outcome"]
        has_to_know = needs(name, rank, victim, victim if name == "recv" else 0)
        if kind == "wrong":
            text = (
                f"rank {rank} returned without an error, with a result that it cannot have: {text}"
            )
            return Answer(question, "wrong", text)
        if kind == "right" and has_to_know and fate in ("dies before", "stops", "never comes"):
            text = f"rank {rank} returned without an error"
            return Answer(question, "wrong", f"{text}, though rank {victim} gave nothing")
        if "ended" not in words and "ending" in words:
            call = "destroy_process_group()" if "aborted" in words else "abort()"
            text = f"rank {rank} does not come out of {call}: {error or f'it hangs at {where}'}"
            return Answer(question, "hangs" if stack else "wrong", text, where)
        if words.get("again") != [True]:
            why = error or (stack and f"it hangs at {where}") or "the result is wrong"
            text = f"no new group works afterwards: rank {rank}: {why}"
            return Answer(question, "wrong", text, where)
        how = f"raised after {seconds:.1f} s ({text})" if kind == "raised" else "returned"
        reports.append(f"rank {rank} {how}")
    return Answer(question, "works", "; ".join(reports))
