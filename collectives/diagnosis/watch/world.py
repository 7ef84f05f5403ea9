"""The ranks of one world on this machine, seen through the files that their processes write."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from multiprocessing import connection
from pathlib import Path
from typing import BinaryIO

from collectives.diagnosis.rules import rank_state
from collectives.diagnosis.rules.flight_record import match_records
from collectives.diagnosis.rules.judge import judge
from collectives.diagnosis.rules.matching import Matching
from collectives.diagnosis.rules.missing import JoiningWorld, never_met
from collectives.diagnosis.rules.rank_state import Facts, State
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.timing import ANSWER
from collectives.recording import call_log, stack
from collectives.recording.call import Call
from collectives.recording.ending import Ending


class RankProcess:
    """One process that is a rank, or will be one.

    `gone`: when it was seen to have ended, and its exit status if that is known.
    """

    def __init__(self, file: BinaryIO, folder: Path | None = None):
        self.log = call_log.LogReader(file)
        self.folder = folder
        self.gone: tuple[int, int | None] | None = None

    def head(self) -> dict[str, int]:
        """The head of its log, which must be ready."""
        head = self.log.head()
        assert head is not None
        return head

    def look(self) -> None:
        """Note whether it has ended."""
        if self.gone is None and (ending := _ending(self.log.pid())) is not None:
            self.gone = time.monotonic_ns(), ending[0]

    def trust_launcher(self) -> None:
        """Its launcher reports success: it saw how this rank ended, or ended it itself.

        A pool that keeps its workers ends them as it likes, Ray with status 1. Such a rank was last
        seen in the code of the pool; one that ends the program itself, in the program.
        """
        if self.gone is not None:
            at, status = self.gone
            file = self.facts().seen_at[0]
            is_of_pool = (status or 0) > 0 and file and stack.is_library(file)
            if status in (None, -signal.SIGTERM) or is_of_pool:
                self.gone = at, 0

    def read(self, place: int) -> dict:
        """What the process wrote there (see call_log): call_log.ANSWER or call_log.RAISED."""
        with contextlib.suppress(ValueError):
            return json.loads(self.log.text(place))
        return {}

    def facts(self) -> Facts:
        head = self.head()
        gone_at, exit_status = self.gone or (None, None)
        crash = (0, stack.NOWHERE, "") if gone_at is None else self._crash()
        return Facts(
            gone_at=gone_at,
            exit_status=exit_status,
            exception=self.read(call_log.RAISED),
            answer=self.read(call_log.ANSWER),
            recorded_end=head["ended"],
            calls=head["count"],
            is_inside_call=bool(self.log.open),
            is_stopped=gone_at is None and _stat(head["pid"])[:1] in (["T"], ["t"]),
            crash_signal=crash[0],
            crash_place=crash[1],
            crash_does=crash[2],
        )

    def state(self) -> State:
        """How it is, as far as that is known without the other ranks."""
        return rank_state.state(self.facts())

    def _crash(self) -> tuple[int, stack.Frame, str]:
        """The signal that ended it, the frame to name and what torch did, as far as known."""
        if self.folder is None:
            return 0, stack.NOWHERE, ""
        file = self.folder / f"{self.head()['pid']}.stack"
        text = file.read_text(errors="replace") if file.exists() else ""
        cause = text.partition("\n")[0].removeprefix("Fatal Python error: ").replace("-", " ")
        signals = (one for one in signal.valid_signals() if signal.strsignal(one) == cause)
        frames = stack.main_thread(text)
        place = stack.named(frames) or stack.NOWHERE
        return next(signals, 0), place, stack.torch_does(frames)


class WatchedWorld:
    """Ranks that belong together. `starting`: by rank, those that have no log yet."""

    def __init__(self, starting: dict[int, RankProcess] | None = None):
        self.starting = starting or {}
        self.ranks: dict[int, RankProcess] = {}
        self.matching = Matching()
        self.asked = 0
        self.records = 0  # a hash of what the Flight Recorders noted

    @property
    def size(self) -> int:
        return max((rank.head()["world_size"] for rank in self.ranks.values()), default=0)

    def poll(self) -> bool:
        """Read what is new; whether there was anything."""
        for number, process in list(self.starting.items()):
            if process.log.head() is not None:
                self.ranks[number] = self.starting.pop(number)
        calls = [call for number in self.ranks for call in self._new_calls(number)]
        for call in calls:
            self.matching.note(call)
        return bool(calls)

    def _new_calls(self, number: int) -> list[Call]:
        rank = self.ranks[number]
        rank.look()
        has_ended = rank.gone is not None or rank.head()["ended"] > 0
        calls = list(rank.log.poll(has_ended))
        if rank.log.lost:
            self.matching.since[number] = rank.log.since
        return calls

    def ask(self) -> None:
        self.asked += 1
        for rank in self.ranks.values():
            rank.log.ask(self.asked)

    def ask_and_poll(self) -> None:
        """Read what every rank calls, and let it answer where it is just now."""
        self.poll()
        self.ask()
        sleep(ANSWER, self.ranks.values())

    def has_new_records(self) -> bool:
        """Whether torch's own record of any rank has grown since the last time."""
        answers = [
            rank.read(call_log.ANSWER).get("collectives", []) for rank in self.ranks.values()
        ]
        records = [[(group, seq, entry[-2]) for group, seq, *entry in answer] for answer in answers]
        before, self.records = self.records, hash(json.dumps(records))
        return before != self.records

    def are_gone(self) -> bool:
        """Whether no rank runs any more."""
        return all(rank.gone is not None for rank in self.ranks.values())

    def has_ended(self) -> bool:
        """Whether a rank has failed, or all have returned."""
        facts = [rank.facts() for rank in self.ranks.values()]
        return any(one.has_failed for one in facts) or all(one.recorded_end for one in facts)

    def absent(self) -> list[int]:
        """The ranks that have no process on this machine, or none that has joined."""
        return [number for number in range(self.size) if number not in self.ranks]

    def states(self) -> dict[int, State]:
        """How each rank is."""
        facts = {number: rank.facts() for number, rank in self.ranks.items()}
        absent = self.absent()
        here = rank_state.states(facts, self.matching.destroyed, are_all_known=not absent)
        return here | {number: self._state_of_absent(number) for number in absent}

    def _state_of_absent(self, number: int) -> State:
        return State(Ending.MISSING, "no process has come with this rank")

    def joining(self) -> dict[int, Call]:
        """The calls of the ranks that wait to meet the others."""
        calls = {rank: opened[max(opened)] for rank, opened in self.matching.open.items() if opened}
        return {rank: call for rank, call in calls.items() if call.name == "init_process_group"}

    def as_joining(self, place: int) -> JoiningWorld:
        """`place`: a number for where the ranks meet."""
        answers = {number: rank.read(call_log.ANSWER) for number, rank in self.ranks.items()}
        last = self.matching.last
        return JoiningWorld(
            place,
            self.size,
            self.absent(),
            self.joining(),
            last={number: last[number] for number in self.ranks if number in last},
            launched_as={number: one.get("launched_as") for number, one in answers.items()},
            meets={number: one.get("meets", "") for number, one in answers.items()},
            lines=self.judged(stalled=True).lines,
        )

    def verdict(self, stalled: bool) -> Verdict:
        may_miss = stalled and self.joining() and not self.has_ended()
        verdict = never_met([self.as_joining(place=0)]) if may_miss else None
        return verdict or self.judged(stalled)

    def judged(self, stalled: bool) -> Verdict:
        """The verdict if the ranks look for each other in the right place."""
        calls, records = self._all_calls(), self._flight_record()
        return judge(calls, self.states(), self.size, stalled, records)

    def _all_calls(self) -> Matching:
        return self.matching

    def _flight_record(self) -> Matching:
        """What torch itself has noted in each rank."""
        sequences = self.matching.sequences.items()
        members = {group: sequence.members for (group, _), sequence in sequences}
        return match_records(self._answers(), members, self.size)

    def _answers(self) -> dict[int, dict]:
        """The last answer of each rank, as far as it is current."""
        facts = {number: rank.facts() for number, rank in sorted(self.ranks.items())}
        return {number: one.answer for number, one in facts.items() if one.answer_is_current}


def sleep(seconds: float, ranks: Iterable[RankProcess]) -> None:
    """Sleep, and note at once which ranks end meanwhile, and how.

    Nobody can see how a process ended once its parent has asked for it.
    """
    until = time.monotonic() + seconds
    running: dict[int, RankProcess] = {}
    for rank in ranks:
        if rank.gone is None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # it has just ended
                running[os.pidfd_open(rank.log.pid())] = rank
    try:
        waits = set(running)
        while waits and (left := until - time.monotonic()) > 0:
            ended = {fd for fd in connection.wait(waits, left) if isinstance(fd, int)}
            waits -= ended
            for process in ended:
                running[process].look()
    finally:
        for process in running:
            os.close(process)
    time.sleep(max(0, until - time.monotonic()))


def _ending(pid: int) -> tuple[int | None] | None:
    """None while the process runs; else a tuple with its exit status, negative for a signal.

    The status is None if its parent has already asked for it.
    """
    state, *fields = _stat(pid) or [""]
    if not state:
        if sys.platform == "linux":
            return (None,)
        import psutil

        return None if psutil.pid_exists(pid) else (None,)
    if state not in "ZX":
        return None
    status = int(fields[-1]) if len(fields) >= 49 else 0
    return (-(status & 0x7F) if status & 0x7F else status >> 8,)


def _stat(pid: int) -> list[str]:
    """What Linux says of a process, its state first; empty where there is nothing to read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
