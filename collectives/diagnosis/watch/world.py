"""The ranks of one world under diagnosis: what they call, and how each is."""

import dataclasses
import signal
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from collectives.diagnosis.rules.judge import judge
from collectives.diagnosis.rules.matching import Matching
from collectives.diagnosis.rules.snapshot import State, Verdict, is_lost, timed_out
from collectives.diagnosis.rules.unmatched import LeftOver, from_json, left_over, to_json, together
from collectives.diagnosis.watch.rank_process import Rank
from collectives.recording import call_log
from collectives.recording.call import WORLD, Call, group_label

# A rank that is gone for reasons unknown this much after another one raised was ended by their launcher, in nanoseconds.
_LAUNCHER = 60_000_000

_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
}
_DTYPES |= {"Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}


class Elsewhere(NamedTuple):
    """What is known of a rank on another machine."""

    state: State
    answer: dict
    left_over: LeftOver


class World:
    """Ranks that belong together."""

    def __init__(self):
        self.ranks: dict[int, Rank] = {}
        self.elsewhere: dict[int, Elsewhere] = {}
        self.matching = Matching()
        self.together: Matching | None = None  # with the calls of other machines
        self.asked = 0
        self.twice: set[int] = (
            set()
        )  # the ranks as which a second process came while the first one was there
        self.has_begun = False  # all ranks, here and elsewhere, have met
        self.expected: dict[
            int, Rank
        ] = {}  # absent ranks, as far as it is clear which processes they will be

    @property
    def size(self) -> int:
        return max((rank.log.head()["world_size"] for rank in self.ranks.values()), default=0)

    def has_room(self, head: dict) -> bool | None:
        """None: it will show. Of processes with one rank the seat is its who calls first: others may just have the environment of
        that rank, as its launcher or its children. One that began another program before it called anything keeps its seat."""
        if min(self.size, head["world_size"]) > 0 and self.size != head["world_size"]:
            return False
        if (sits := self.ranks.get(head["rank"])) is None:
            return True
        taken = sits.log.head()
        if taken["pid"] == head["pid"] and not taken["count"]:
            return True
        if sits.gone is not None:
            return False
        return not taken["count"] if head["count"] else None

    def leave_out_moved(self) -> None:
        """Who joined another world than its launcher had said was never here."""
        self.ranks = {
            number: rank
            for number, rank in self.ranks.items()
            if rank.log.head()["rank"] != call_log.MOVED
        }

    def poll(self) -> bool:
        """Read what is new; whether there was anything."""
        moved = False
        for rank in self.ranks.values():
            rank.look()
            for call in rank.log.poll():
                self.matching.lossy |= rank.log.lost > 0
                self.matching.note(call)
                self.has_begun |= (
                    call.name == "init_process_group" and call.left is not None and not call.error
                )
                moved = True
            self.matching.lossy |= rank.log.lost > 0
        if moved:  # what other machines told is of another moment
            self.elsewhere, self.together = {}, None
        return moved

    def ask(self) -> None:
        self.asked += 1
        for rank in self.ranks.values():
            rank.log.ask(self.asked)

    def states(self) -> dict[int, State]:
        """How each rank is. Ranks that their launcher ended, since another had failed, count as being where they were."""
        states = {number: rank.state() for number, rank in self.ranks.items()}
        own = {
            one: state.at
            for one, state in states.items()
            if state.status == "raised" or self._died_of(one) not in (0, -signal.SIGTERM)
        }
        culprit = self._culprit(states, own)
        for number, state in states.items():
            first = min((one for one in own if one != number), key=own.get, default=None)
            died_of = self._died_of(number)
            if (
                first is None
                or state.status != "died"
                or died_of not in (None, -signal.SIGTERM)
                or number == culprit
            ):
                continue
            since = own[first] + (0 if timed_out(states[first].text) else _LAUNCHER)
            if number in self.matching.destroyed:
                states[number] = State(
                    "returned", at=self.matching.destroyed[number].entered
                )  # all that was left to do was to end
            elif died_of == -signal.SIGTERM or state.at > since:
                states[number] = State(
                    text="was ended by its launcher", where=state.where, is_old=state.is_old
                )
        return states | {number: self._state_elsewhere(number) for number in self.absent()}

    def _culprit(self, states: dict[int, State], own: dict[int, int]) -> int | None:
        """Where all that is known is that ranks lost others: the first of those that may have ended of their own accord."""
        is_explained = self.absent() or any(
            state.status == "returned"
            or (state.status == "raised" and (timed_out(state.text) or not is_lost(state.text)))
            or (state.status == "died" and self._died_of(one) not in (None, -signal.SIGTERM))
            or one in self.matching.destroyed
            for one, state in states.items()
        )
        first = min(own.values(), default=0)
        ended = {one: state.at for one, state in states.items() if state.status == "died"}
        may_be = [
            one for one in ended if self._died_of(one) is None or ended[one] < first + _LAUNCHER
        ]
        return None if is_explained else min(may_be, key=ended.get, default=None)

    def has_ended(self) -> bool:
        """Whether a rank has failed, or all have returned."""
        ranks = self.ranks.values()
        return any(rank.has_failed() for rank in ranks) or all(
            rank.log.head()["ended"] for rank in ranks
        )

    def absent(self) -> list[int]:
        """The ranks that have no process on this machine."""
        return [number for number in range(self.size) if number not in self.ranks]

    def joining(self) -> dict[int, Call]:
        """The calls of the ranks that wait to meet the others."""
        opened = {
            number: [*calls.values()] for number, calls in self.matching.open.items() if calls
        }
        return {
            number: calls[-1]
            for number, calls in opened.items()
            if calls[-1].name == "init_process_group"
        }

    def _state_elsewhere(self, number: int) -> State:
        if number in self.elsewhere:
            return self.elsewhere[number].state
        if number in self.expected:
            return self.expected[number].state()
        if self.has_begun:
            return State(
                "elsewhere", "runs on a machine that tells nothing: diagnose its command there, too"
            )
        instead = (
            f", but two as rank {', '.join(map(str, sorted(self.twice)))}" if self.twice else ""
        )
        return State("missing", f"no process has come with this rank{instead}")

    def _died_of(self, number: int) -> int | None:
        """The exit status of a rank, 0 while it runs, None where it is not known."""
        gone = self.ranks[number].gone
        return 0 if gone is None else gone[1]

    def verdict(self, stalled: bool) -> Verdict:
        if self.elsewhere and self.together is None:
            left_overs = [left_over(self.matching, number) for number in self.ranks]
            self.together = together(
                [*left_overs, *(one.left_over for one in self.elsewhere.values())]
            )
            self.together.difference = self.matching.difference or self.together.difference
            self.together.lossy = self.matching.lossy
        return judge(
            self.together or self.matching, self.states(), self.size, stalled, self.native()
        )

    def tell(self) -> dict[int, dict]:
        """What another machine wants to know of our ranks, as plain values."""
        states = self.states()
        told = {}
        for number, rank in self.ranks.items():
            own = {
                "state": dataclasses.asdict(states[number]),
                "answer": rank.read(call_log.ANSWER),
            }
            told[number] = {**own, **to_json(left_over(self.matching, number))}
        return told

    def hear(self, others: dict[int, dict]) -> None:
        """What other machines tell of their ranks. Their clocks are so many nanoseconds `later` than ours."""
        self.elsewhere, self.together = {}, None
        for number in set(self.absent()) & set(others):
            told = others[number]
            state = State(**told["state"])
            state = dataclasses.replace(
                state, where=tuple(state.where), at=state.at and state.at + told["later"]
            )
            self.elsewhere[number] = Elsewhere(state, told["answer"], from_json(told))

    def native(self) -> Matching:
        """What the Flight Recorder of each rank told last."""
        groups = {
            group: sequence.members for (group, _), sequence in self.matching.sequences.items()
        }
        # What a rank that was killed told last may be old.
        fresh = {
            number: rank for number, rank in sorted(self.ranks.items()) if rank.has_last_word()
        }
        answers = {number: rank.read(call_log.ANSWER) for number, rank in fresh.items()}
        answers |= {number: one.answer for number, one in self.elsewhere.items()}
        # A process may join one world after another: what it tells is of its last.
        last = Counter(answer["world"] for answer in answers.values() if answer).most_common(1)
        told = {
            rank: answer["collectives"]
            for rank, answer in answers.items()
            if answer and answer["world"] == last[0][0]
        }
        return Matching(
            call
            for rank in told
            for call in self._native_calls(rank, told[rank], groups, set(told), last[0][0])
        )

    def _native_calls(
        self, rank: int, entries: list, groups: dict, answered: set[int], world: int
    ) -> Iterator[Call]:
        for number, ((name, description), seq, called, sizes, dtypes, retired, where) in enumerate(
            entries
        ):
            group = WORLD if description == "default_pg" else group_label(name, world)
            members = groups.get(group) or (tuple(range(self.size)) if group == WORLD else ())
            members = tuple(one for one in members if one in answered)
            tensors = tuple(
                f"{_DTYPES.get(kind, kind)}{size}"
                for size, kind in zip(sizes, dtypes, strict=False)
            )
            place = dict(zip(("file", "line", "function"), where, strict=True))
            name = called.partition(":")[2].lstrip("_")
            yield Call(
                rank,
                number,
                name,
                group,
                members,
                seq - 1,
                tensors=tensors,
                left=1 if retired else None,
                **place,
            )
