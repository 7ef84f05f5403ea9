"""The ranks of one world on this machine: what they call, and how each is."""

import json

from collectives.diagnosis.rules import rank_state
from collectives.diagnosis.rules.flight_record import match_records
from collectives.diagnosis.rules.judge import judge
from collectives.diagnosis.rules.matching import Matching
from collectives.diagnosis.rules.missing import JoiningWorld, never_met
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.timing import ANSWER
from collectives.diagnosis.watch.rank_process import RankProcess, sleep
from collectives.recording import call_log
from collectives.recording.call import Call


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
        records = [[(group, seq, entry[-2]) for group, seq, *entry in told] for told in answers]
        before, self.records = self.records, hash(json.dumps(records))
        return before != self.records

    def are_gone(self) -> bool:
        """Whether no rank runs any more."""
        return all(rank.gone is not None for rank in self.ranks.values())

    def has_ended(self) -> bool:
        """Whether a rank has failed, or all have returned."""
        facts = [rank.facts() for rank in self.ranks.values()]
        return any(one.has_failed for one in facts) or all(one.noted_end for one in facts)

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
        return State("missing", "no process has come with this rank")

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
