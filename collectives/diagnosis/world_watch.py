"""The ranks of a program under diagnosis, seen through the files that its processes write: what they call, and how they end."""

import contextlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from collectives.diagnosis.matching import Matching
from collectives.diagnosis.verdict import State, Verdict, is_lost, judge
from collectives.recording import call_log
from collectives.recording.call import WORLD, Call, Noticed, label

# A rank that is gone for reasons unknown this much after another one raised was ended by their launcher, in nanoseconds.
_LAUNCHER = 60_000_000

_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32"}
_DTYPES |= {"Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}


class Rank:
    """One process that has, or will have, a rank."""

    def __init__(self, file: BinaryIO):
        self.log = call_log.Reader(file)
        self.gone: tuple[int, int | None] | None = None  # when it was seen to have ended, and how

    def look(self) -> None:
        if self.gone is None and (ending := _ending(self.log.head()["pid"])) is not None:
            self.gone = time.monotonic_ns(), ending[0]

    def trust_launcher(self) -> None:
        """The launcher, which alone could see how this rank ended, is content."""
        if self.gone is not None and self.gone[1] is None:
            self.gone = self.gone[0], 0

    def read(self, place: int) -> dict:
        with contextlib.suppress(ValueError):
            return json.loads(self.log.text(place))
        return {}

    def has_last_word(self) -> bool:
        """Whether its answers are of now: it runs, or has ended in a way that let it answer once more."""
        return self.gone is None or bool((self.log.head() or {}).get("ended") or self.read(call_log.RAISED))

    def state(self) -> State:
        answer, raised = self.read(call_log.ANSWER), self.read(call_log.RAISED)
        where, in_torch = tuple(answer.get("where") or ("", 0, "")), bool(answer.get("in_torch"))
        if raised:
            return State("raised", raised["text"], tuple(raised["where"]), raised["at"])
        ended = (self.log.head() or {}).get("ended")
        if self.gone is None:
            return State("returned", at=ended) if ended else State(where=where, in_torch=in_torch)
        at, status = self.gone
        if status is not None and status < 0:
            return State("died", f"was killed by {_signal(-status)}", at=at)
        if ended and not status:
            return State("returned", at=ended)
        if status == 0:
            return State("returned", "left by os._exit", at=at)
        text = f"ended with exit status {status}" if status else "died (killed, or left by os._exit)"
        return State("raised" if ended else "died", text, where if ended else ("", 0, ""), at)


def _ending(pid: int) -> tuple[int | None] | None:
    """None while a process runs; else its exit status if it can be known (a signal is negative): before its parent has asked."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if sys.platform == "linux":
            return (None,)
        import psutil

        return None if psutil.pid_exists(pid) else (None,)
    if state not in "ZX":
        return None
    status = int(fields[-1]) if len(fields) >= 49 else 0
    return (-(status & 0x7F) if status & 0x7F else status >> 8,)


def _signal(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


class World:
    """Ranks that belong together."""

    def __init__(self):
        self.ranks: dict[int, Rank] = {}
        self.matching = Matching()
        self.asked = 0

    @property
    def size(self) -> int:
        return max((rank.log.head()["world_size"] for rank in self.ranks.values()), default=0)

    def poll(self) -> bool:
        """Read what is new; whether there was anything."""
        moved = False
        for rank in self.ranks.values():
            rank.look()
            for call in rank.log.poll():
                self.matching.note(call)
                moved = True
            self.matching.lossy |= rank.log.lost > 0
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
        for number, state in states.items():
            first = min((at for one, at in own.items() if one != number), default=None)
            if first is None or state.status != "died":
                continue
            unknown = self._died_of(number) is None and state.at > first + _LAUNCHER
            if unknown or self._died_of(number) == -signal.SIGTERM:
                states[number] = State(text="was ended by its launcher")
        return states

    def _died_of(self, number: int) -> int | None:
        """The exit status of a rank, 0 while it runs, None where it is not known."""
        gone = self.ranks[number].gone
        return 0 if gone is None else gone[1]

    def verdict(self, stalled: bool) -> Verdict:
        return judge(self.matching, self.states(), self.size, stalled, self.native())

    def native(self) -> Matching:
        """What the Flight Recorder of each rank told last."""
        groups = {group: sequence.members for (group, _), sequence in self.matching.sequences.items()}
        # What a rank that was killed told last may be old.
        fresh = {number: rank for number, rank in sorted(self.ranks.items()) if rank.has_last_word()}
        answers = {number: rank.read(call_log.ANSWER) for number, rank in fresh.items()}
        # A process may join one world after another: what it tells is of its last.
        last = Counter(answer["world"] for answer in answers.values() if answer).most_common(1)
        told = {rank: answer["collectives"] for rank, answer in answers.items() if answer and answer["world"] == last[0][0]}
        return Matching(call for rank in told for call in self._native_calls(rank, told[rank], groups, set(told), last[0][0]))

    def _native_calls(self, rank: int, entries: list, groups: dict, answered: set[int], world: int) -> Iterator[Call]:
        for number, ((name, description), seq, called, sizes, dtypes, retired, where) in enumerate(entries):
            group = WORLD if description == "default_pg" else label(name, world)
            members = groups.get(group) or (tuple(range(self.size)) if group == WORLD else ())
            members = tuple(one for one in members if one in answered)
            tensors = tuple(f"{_DTYPES.get(kind, kind)}{size}" for size, kind in zip(sizes, dtypes, strict=False))
            place = dict(zip(("file", "line", "function"), where, strict=True))
            name = called.partition(":")[2].lstrip("_")
            yield Call(rank, number, name, group, members, seq - 1, tensors=tensors, left=1 if retired else None, **place)


class Worlds:
    """All worlds that a program makes, one after another or at once."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self.known: set[Path] = set()
        self.waiting: list[Rank] = []
        self.worlds: dict[tuple, World] = {}
        self.heard = 0

    def poll(self) -> bool:
        """Read what is new; whether anything has moved."""
        for path in set(self.folder.glob("*.calls") if self.folder else ()) - self.known:
            with contextlib.suppress(ValueError, OSError), open(path, "rb+") as file:  # its writer is not done with the beginning
                self.waiting.append(Rank(file))
                self.known.add(path)
        waiting, self.waiting = self.waiting, []
        for rank in waiting:
            head = rank.log.head()
            if head is not None and head["rank"] >= 0:
                self._seat(rank, head)
            else:
                self.waiting.append(rank)
        return sum(world.poll() for world in self.worlds.values()) > 0

    def _seat(self, rank: Rank, head: dict) -> None:
        """Those of one parent are one world, and a second process of the same rank begins the next one."""
        generation = 0
        while head["rank"] in self.worlds.setdefault((head["parent"], generation), World()).ranks:
            generation += 1
        self.worlds[head["parent"], generation].ranks[head["rank"]] = rank

    def ask(self) -> None:
        for world in self.worlds.values():
            world.ask()

    def has_heard_more(self) -> bool:
        """Whether torch's own record of any rank has grown since the last time."""
        entries = [
            rank.read(call_log.ANSWER).get("collectives", []) for world in self.worlds.values() for rank in world.ranks.values()
        ]
        told = [[(entry[0], entry[1], entry[5]) for entry in one] for one in entries]
        before, self.heard = self.heard, hash(json.dumps(told))
        return before != self.heard

    def trust_launcher(self) -> None:
        for world in self.worlds.values():
            for rank in world.ranks.values():
                rank.trust_launcher()

    def verdict(self, stalled: bool) -> Verdict:
        """Of the first world that has anything to say."""
        called = [world for world in self.worlds.values() if world.matching.last]
        verdicts = [world.verdict(stalled) for world in called or self.worlds.values()]
        first = next((verdict for verdict in verdicts if verdict.kind != "ok"), None)
        return first or (verdicts[-1] if verdicts else Verdict("not-distributed", NOT_DISTRIBUTED))

    def noticed(self) -> list[Noticed]:
        return [one for world in self.worlds.values() for rank in world.ranks.values() for one in rank.log.noticed()]

    def notes(self) -> list[str]:
        """What the report cannot speak of."""
        told = []
        for world in self.worlds.values():
            told += [
                f"rank {number}: {rank.log.lost} calls went by unseen" for number, rank in world.ranks.items() if rank.log.lost
            ]
        told += (
            []
            if self.folder is None
            else [f"process {path.stem} could not be watched: {path.read_text()}" for path in self.folder.glob("*.unwatched")]
        )
        return told

    def first_raised(self) -> dict | None:
        """The first exception that ended a process, a rank or not, and is no consequence of another's."""
        found = []
        for path in self.folder.glob("*.raised"):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(path.read_text()))
        return min((one for one in found), key=lambda one: (is_lost(one["text"]), one["at"]), default=None)


NOT_DISTRIBUTED = "not-distributed: no process that could be watched called torch.distributed"
