"""The ranks of one world under diagnosis: what they call, and how each is."""

import dataclasses
import socket
from enum import Enum
from typing import NamedTuple

from collectives.diagnosis.rules import rank_state
from collectives.diagnosis.rules.flight_record import match_records
from collectives.diagnosis.rules.judge import judge
from collectives.diagnosis.rules.matching import Matching
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.rendezvous import JoiningWorld
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.rules.unmatched import Unmatched, from_json, merge, unmatched
from collectives.diagnosis.watch.rank_process import RankProcess
from collectives.recording import call_log
from collectives.recording.call import Call, as_tuples


class Elsewhere(NamedTuple):
    """What is known of a rank on another node."""

    state: State
    answer: dict
    unmatched: Unmatched


class Claim(Enum):
    """What becomes of a process that says that it is a certain rank of a world."""

    GRANTED = "it is that rank"
    REFUSED = "another process is; this one belongs to the next world"
    OPEN = "the one of the two that calls first will be it"


class WatchedWorld:
    """Ranks that belong together."""

    def __init__(self):
        self.ranks: dict[int, RankProcess] = {}
        self.elsewhere: dict[int, Elsewhere] = {}
        self.machines: dict[int, str] = {}  # by rank, the machines that will answer
        self.lost_store = ""  # the host of the job's store, once that does not answer
        self.matching = Matching()
        self.merged: Matching | None = None  # with the calls of other nodes
        self.asked = 0
        self.duplicates: set[int] = set()  # ranks that two running processes claimed to be
        self.has_begun = False  # all ranks, on all nodes, have met
        self.not_joined: dict[int, RankProcess] = {}  # the processes that will be absent ranks

    @property
    def size(self) -> int:
        return max((rank.head()["world_size"] for rank in self.ranks.values()), default=0)

    def claim(self, head: dict) -> Claim:
        """Whether the process with this head of its log is a rank of this world.

        Of several processes with one rank, the one that calls first is the rank: others may just
        have inherited its environment, as its launcher or its children. A process that has begun
        another program before its first call is still the same rank.
        """
        if min(self.size, head["world_size"]) > 0 and self.size != head["world_size"]:
            return Claim.REFUSED
        if (other := self.ranks.get(head["rank"])) is None:
            return Claim.GRANTED
        taken = other.head()
        if taken["pid"] == head["pid"] and not taken["count"]:
            return Claim.GRANTED
        if other.gone is not None:
            return Claim.REFUSED
        if not head["count"]:
            return Claim.OPEN
        return Claim.REFUSED if taken["count"] else Claim.GRANTED

    def remove_moved(self) -> None:
        """Remove processes that joined another world than their launcher said."""
        heads = {number: rank.head() for number, rank in self.ranks.items()}
        for number, head in heads.items():
            if head["rank"] == call_log.MOVED:
                del self.ranks[number]

    def poll(self) -> bool:
        """Read what is new; whether there was anything."""
        moved = False
        for number, rank in self.ranks.items():
            rank.look()
            has_ended = rank.gone is not None or rank.head()["ended"] > 0
            calls = list(rank.log.poll(has_ended))
            if rank.log.lost:
                self.matching.since[number] = rank.log.since
            for call in calls:
                self.matching.note(call)
                joins = call.name == "init_process_group"
                self.has_begun |= joins and call.left is not None and not call.error
                moved = True
        if moved:  # the messages of other nodes are about an earlier moment
            self.elsewhere, self.merged = {}, None
        return moved

    def ask(self) -> None:
        self.asked += 1
        for rank in self.ranks.values():
            rank.log.ask(self.asked)

    def states(self) -> dict[int, State]:
        """How each rank is."""
        facts = {number: rank.facts() for number, rank in self.ranks.items()}
        absent = self.absent()
        here = rank_state.states(facts, self.matching.destroyed, are_all_known=not absent)
        if absent:
            name = socket.gethostname()
            here = {rank: dataclasses.replace(one, machine=name) for rank, one in here.items()}
        return here | {number: self._state_of_absent(number) for number in absent}

    def _state_of_absent(self, number: int) -> State:
        if number in self.elsewhere:
            return self.elsewhere[number].state
        if number in self.not_joined:
            return self.not_joined[number].state()
        if number in self.machines:
            name, host = self.machines[number], self.lost_store
            text = "does not answer"
            if host and host != name:
                text = f"cannot be asked: the store on {host} does not answer"
            return State("unheard", text, machine=name)
        if self.has_begun:
            text = "runs on a machine that tells nothing: diagnose its command there, too"
            return State("elsewhere", text)
        text = "no process has come with this rank"
        if self.duplicates:
            text += f", but two as rank {', '.join(map(str, sorted(self.duplicates)))}"
        return State("missing", text)

    def has_ended(self) -> bool:
        """Whether a rank has failed, or all have returned."""
        facts = [rank.facts() for rank in self.ranks.values()]
        return any(one.has_failed for one in facts) or all(one.noted_end for one in facts)

    def absent(self) -> list[int]:
        """The ranks that have no process on this node, or none that has joined."""
        return [number for number in range(self.size) if number not in self.ranks]

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
            lines=self.verdict(stalled=True).lines,
        )

    def verdict(self, stalled: bool) -> Verdict:
        if self.elsewhere and self.merged is None:
            here = [unmatched(self.matching, number) for number in self.ranks]
            self.merged = merge([*here, *(one.unmatched for one in self.elsewhere.values())])
            self.merged.paths |= self.matching.paths
            self.merged.difference = self.matching.difference or self.merged.difference
        matching = self.merged or self.matching
        return judge(matching, self.states(), self.size, stalled, self._flight_record())

    def to_json(self) -> dict[int, dict]:
        """What another node wants to know of our ranks."""
        states = self.states()
        return {
            number: {
                "state": dataclasses.asdict(states[number]),
                "answer": rank.read(call_log.ANSWER),
                "unmatched": dataclasses.astuple(unmatched(self.matching, number)),
            }
            for number, rank in self.ranks.items()
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
            self.verdict(stalled=True)
        except Exception:
            # Whoever reaches the store can write anything there. It must not end the job: what no
            # verdict can be given on counts as not sent.
            self.elsewhere, self.merged = {}, None

    def _flight_record(self) -> Matching:
        """What torch itself has noted in each rank, as far as its last answer is current."""
        facts = {number: rank.facts() for number, rank in sorted(self.ranks.items())}
        answers = {number: one.answer for number, one in facts.items() if one.answer_is_current}
        answers |= {number: one.answer for number, one in self.elsewhere.items()}
        sequences = self.matching.sequences.items()
        members = {group: sequence.members for (group, _), sequence in sequences}
        return match_records(answers, members, self.size)


def _elsewhere(sent: dict) -> Elsewhere:
    state = State(**as_tuples(sent["state"]))
    state = dataclasses.replace(state, at=state.at and state.at + sent["clock_ahead"])
    return Elsewhere(state, sent["answer"], from_json(sent["unmatched"]))
