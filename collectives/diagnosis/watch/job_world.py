"""One of the worlds of a job: its ranks are found one by one, also on other machines."""

import dataclasses
import socket
from enum import Enum
from typing import NamedTuple

from collectives.diagnosis.rules.latecomers import (
    Joined,
    Process,
    ended,
    latecomers,
    on_other_machines,
)
from collectives.diagnosis.rules.matching import Matching
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.unmatched import Unmatched, from_json, merge, unmatched
from collectives.diagnosis.watch.world import RankProcess, WatchedWorld
from collectives.recording import call_log
from collectives.recording.call import Call, as_tuples
from collectives.recording.ending import Ending


class Elsewhere(NamedTuple):
    """What is known of a rank on another node."""

    state: State
    answer: dict
    unmatched: Unmatched


class Admission(Enum):
    """What becomes of a process that says that it is a certain rank of a world."""

    GRANTED = "it is that rank"
    REFUSED = "another process is; this one belongs to the next world"
    OPEN = "the one of the two that calls first will be it"


class JobWorld(WatchedWorld):
    """A world that says of itself who its ranks are. `attempt`: of an elastic job."""

    def __init__(self, attempt: int = 0):
        super().__init__()
        self.attempt = attempt
        self.elsewhere: dict[int, Elsewhere] = {}
        self.machines: dict[int, str] = {}  # by rank, the machines that will answer
        self.lost_store = ""  # the host of the job's store, once that does not answer
        self.merged: Matching | None = None  # with the calls of other nodes
        self.duplicates: set[int] = set()  # ranks that two running processes claimed to be
        self.has_begun = False  # all ranks, on all nodes, have met
        self.late: dict[int, list[Process]] = {}  # by absent rank, the processes that it may be
        self.ended: dict[int, Process] = {}  # and the one that it was
        self.far: set[int] = set()  # absent ranks that were started on other machines
        self.not_joined: dict[int, RankProcess] = {}  # those of which more is known

    def claim(self, head: dict) -> Admission:
        """Whether the process with this head of its log is a rank of this world.

        Of several processes with one rank, the one that calls first is the rank: others may just
        have inherited its environment, as its launcher or its children. A process that has begun
        another program before its first call is still the same rank.
        """
        if min(self.size, head["world_size"]) > 0 and self.size != head["world_size"]:
            return Admission.REFUSED
        if (other := self.ranks.get(head["rank"])) is None:
            return Admission.GRANTED
        taken = other.head()
        if taken["pid"] == head["pid"] and not taken["count"]:
            return Admission.GRANTED
        if other.gone is not None:
            return Admission.REFUSED
        if not head["count"]:
            return Admission.OPEN
        return Admission.REFUSED if taken["count"] else Admission.GRANTED

    def expect(
        self, processes: dict[int, Process], called: set[int], noting: dict[int, RankProcess]
    ) -> None:
        """Find out which processes may be the ranks that have not come.

        `called`: the processes that are ranks. `noting`: those of the others that note calls.
        """
        for pid in noting.keys() & processes.keys():
            waits = bool(noting[pid].read(call_log.ANSWER).get("waits"))
            processes = processes | {pid: dataclasses.replace(processes[pid], waits=waits)}
        joining = self.joining()
        joined = Joined(
            self.size,
            {number: rank.head()["pid"] for number, rank in self.ranks.items()},
            {number: call.entered for number, call in joining.items()},
            self.attempt,
        )
        absent = self.absent()
        self.late = latecomers(absent, processes, joined, called)
        self.ended = {
            number: process
            for number in set(absent) - set(self.late)
            if (process := ended(number, processes, joined)) is not None
        }
        self.far = on_other_machines(absent, {*self.late, *self.ended}, processes, joined)
        self.not_joined = {}
        for nth, (number, candidates) in enumerate(self.late.items()):
            # Alike ranks that nobody has numbered: each is one of them.
            process = candidates[nth if len(candidates) == len(self.late) else 0]
            if process.pid in noting and len(candidates) in (1, len(self.late)):
                self.not_joined[number] = noting[process.pid]

    def _state_of_late(self, number: int) -> State:
        state = State(text="has not called torch.distributed yet")
        if number in self.not_joined:
            state = self.not_joined[number].state()
        return dataclasses.replace(state, process=" or ".join(map(str, self.late[number])))

    def remove_moved(self) -> None:
        """Remove processes that joined another world than their launcher said."""
        heads = {number: rank.head() for number, rank in self.ranks.items()}
        for number, head in heads.items():
            if head["rank"] == call_log.MOVED:
                del self.ranks[number]

    def poll(self) -> bool:
        moved = super().poll()
        if moved:  # the messages of other nodes are about an earlier moment
            self.elsewhere, self.merged = {}, None
        return moved

    def _new_calls(self, number: int) -> list[Call]:
        calls = super()._new_calls(number)
        for call in calls:
            joins = call.name == "init_process_group"
            self.has_begun |= joins and call.left is not None and not call.error
        return calls

    def states(self) -> dict[int, State]:
        states = super().states()
        if not self.absent() or (self.late and not (self.elsewhere or self.machines)):
            return states
        name = socket.gethostname()
        here = {number: dataclasses.replace(states[number], machine=name) for number in self.ranks}
        return states | here

    def _state_of_absent(self, number: int) -> State:
        if number in self.elsewhere:
            return self.elsewhere[number].state
        if number in self.late:
            return self._state_of_late(number)
        if number in self.machines:
            name, host = self.machines[number], self.lost_store
            if host in ("", name):  # without the store its own machine alone is known to be silent
                return State(Ending.UNHEARD, "does not answer", machine=name)
            text = f"cannot be asked: the store on {host} does not answer"
            return State(Ending.UNASKED, text, machine=name)
        if self.has_begun:
            text = "runs on another machine: start its command there with diagnose, too"
            return State(Ending.ELSEWHERE, text)
        if number in self.far:
            text = "not joined yet, on a machine of which nothing is heard"
            return State(text=text)
        if number in self.ended:
            text = f"ended before it called torch.distributed ({self.ended[number]})"
            return State(Ending.MISSING, text)
        missing = super()._state_of_absent(number)
        if not self.duplicates:
            return missing
        twice = ", ".join(map(str, sorted(self.duplicates)))
        return dataclasses.replace(missing, text=f"{missing.text}, but two as rank {twice}")

    def _all_calls(self) -> Matching:
        if self.elsewhere and self.merged is None:
            here = [unmatched(self.matching, number) for number in self.ranks]
            self.merged = merge([*here, *(one.unmatched for one in self.elsewhere.values())])
            self.merged.paths |= self.matching.paths
            self.merged.difference = self.matching.difference or self.merged.difference
        return self.merged or self.matching

    def to_json(self) -> dict[int, dict]:
        """What another node wants to know of our ranks."""
        states = self.states()
        processes: dict[int, RankProcess | None] = {**dict.fromkeys(self.late), **self.ranks}
        return {
            number: {
                "state": dataclasses.asdict(states[number]),
                "answer": rank.read(call_log.ANSWER) if rank else {},
                "unmatched": dataclasses.astuple(unmatched(self.matching, number)),
            }
            for number, rank in processes.items()
        }

    def update_elsewhere(self, others: dict[int, dict], lost_store: str) -> None:
        """Take what other nodes sent about their ranks, as `to_json` gives it.

        `clock_ahead`: how far their clock is ahead of ours, in nanoseconds. `lost_store`: the host
        of the store, if that does not answer any more.
        """
        self.elsewhere, self.merged, self.lost_store = {}, None, lost_store
        try:
            for number in set(self.absent()) & set(others):
                self.elsewhere[number] = _elsewhere(others[number])
            self.judged(stalled=True)
        except Exception:
            # Whoever reaches the store can write anything there. It must not end the job: what no
            # verdict can be given on counts as not sent.
            self.elsewhere, self.merged = {}, None

    def _answers(self) -> dict[int, dict]:
        return super()._answers() | {number: one.answer for number, one in self.elsewhere.items()}


def _elsewhere(sent: dict) -> Elsewhere:
    state = State(**as_tuples(sent["state"]))
    state = dataclasses.replace(state, status=Ending(state.status))
    state = dataclasses.replace(state, at=state.at and state.at + sent["clock_ahead"])
    return Elsewhere(state, sent["answer"], from_json(sent["unmatched"]))
