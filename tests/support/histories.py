"""Made-up programs, and what their ranks write while they run: for the rules of the diagnosis.

A program is what its ranks call, one call after another in an order that cannot hang. `Run` lets
the ranks go on in any order, and notes their calls with the recorder's own code. Then a WatchedWorld
reads them, as under `collectives diagnose`.
"""

import dataclasses
import functools
import itertools
import json
import random
import tempfile
from collections import defaultdict, deque
from dataclasses import dataclass
from unittest import mock

import torch
import torch.distributed as dist
from hand_made import record

from collectives.diagnosis.watch import world as watched
from collectives.diagnosis.watch.world import WatchedWorld
from collectives.recording import call_log, rank_log
from collectives.recording.call import CallArgs, TensorKind
from collectives.semantics.calls import FROM_ROOT, POINT_TO_POINT, SENDS, TO_ROOT

# So many calls a log holds here, torch's record, and what a rank tells of that.
SLOTS, RECORD, TOLD = 24, 40, 15


@dataclass(frozen=True)
class Step:
    """What one rank does next: it makes a call, or waits for the Work of an earlier one, `of`."""

    what: CallArgs
    of: "Step | None" = None
    key: int = 0  # the call in the program: two steps of one line are not equal


def call(name, group, members, line, **fields):
    return _call(name, group, members, line, tuple(fields.items()))


@functools.cache
def _call(name, group, members, line, fields):
    place = {"file": "train.py", "line": line, "function": "step"}
    tensors = () if name == "barrier" else (TensorKind("float32", (4,)),)
    return CallArgs(name, group, members, tensors=tensors, **place, **dict(fields))


class Program:
    """`steps`: by rank, what it does. `draw`: a random.Random, or one of hypothesis."""

    def __init__(self, draw):
        self.draw = draw
        self.n = draw.randint(3, 8)
        self.world = {"WORLD": tuple(range(self.n))}
        self.families = [self.world, *(self._family(10 * i) for i in range(draw.randint(1, 2)))]
        self.steps: dict[int, list[Step]] = {rank: [] for rank in range(self.n)}
        self.later: dict[int, list[tuple[int, Step]]] = defaultdict(list)
        self.lines, self.keys = itertools.count(10), itertools.count()
        for _ in range(draw.randint(1, 3)):
            self._loop()
        for rank in range(self.n):
            self._wait(rank, until=None)

    def _family(self, number):
        """Groups that a line of the program goes through, or of which a rank takes its own."""
        ranks = list(range(self.n))
        kind = self.draw.choice(["any", "ring", "mesh"])
        if kind == "mesh":
            width = self.draw.choice([2, 3])
            members = [tuple(ranks[i : i + width]) for i in range(0, self.n, width)]
            if self.draw.random() < 0.5:
                members = [tuple(ranks[i::width]) for i in range(width)]
        elif kind == "ring":
            members = [tuple(sorted((rank, (rank + 1) % self.n))) for rank in ranks]
        else:
            sizes = [self.draw.randint(2, self.n) for _ in range(self.draw.randint(1, 4))]
            members = [tuple(sorted(self.draw.sample(ranks, size))) for size in sizes]
        return {str(number + i): group for i, group in enumerate(members, 1)}

    def _loop(self):
        """Some statements, again and again."""
        first = next(self.lines)
        body = [(first + i, self.draw.randint(0, 10**6)) for i in range(self.draw.randint(1, 5))]
        self.lines = itertools.count(first + len(body))
        for _ in range(self.draw.randint(1, 9)):
            for line, seed in body:
                self._statement(line, random.Random(seed))

    def _statement(self, line, draw):
        kind = draw.choice(["collective"] * 4 + ["message", "shift"])
        if kind == "message":
            pair, tag = draw.sample(range(self.n), 2), draw.randint(0, 1)
            for name, rank, peer in zip(("send", "recv"), pair, pair[::-1], strict=True):
                self._make(rank, call(name, "WORLD", self.world["WORLD"], line, peer=peer, tag=tag))
        elif kind == "shift":
            for rank in range(self.n):
                for name, way in (("isend", 1), ("irecv", -1)):
                    there = {"peer": (rank + way) % self.n, "tag": 0, "is_async": True}
                    self._make(rank, call(name, "WORLD", self.world["WORLD"], line, **there))
                self._wait(rank, until=None)
        else:
            family, late = draw.choice(self.families), draw.choice([None, None, 1, 4])
            name = draw.choice(["all_reduce", "all_reduce", "barrier", "broadcast", "reduce"])
            for group, members in family.items():
                root = {"peer": members[0]} if name in ("broadcast", "reduce") else {}
                what = call(name, group, members, line, is_async=late is not None, **root)
                for rank in members:
                    self._make(rank, what, late or 0)

    def _make(self, rank, what, late=0):
        step = Step(what, key=next(self.keys))
        self.steps[rank].append(step)
        if what.is_async:
            self.later[rank].append((len(self.steps[rank]) + late, step))
        self._wait(rank, until=len(self.steps[rank]))

    def _wait(self, rank, until):
        due = [one for one in self.later[rank] if until is None or one[0] < until]
        self.later[rank] = [one for one in self.later[rank] if one not in due]
        self.steps[rank] += [Step(wait_for(step.what), of=step) for _, step in due]


@functools.cache
def wait_for(what):
    fields = {"name": "wait", "awaited": what.name, "is_async": False, "line": what.line + 1000}
    return dataclasses.replace(what, **fields)


FAULTS = ("leaves out", "replaces", "swaps")


def change(program, fault, draw):
    """One rank leaves out a call, makes another one in its place, or the two next in the other
    order. Returns the rank.
    """
    rank = draw.choice([rank for rank, steps in program.steps.items() if steps])
    steps = program.steps[rank]
    calls = [i for i, step in enumerate(steps) if step.of is None]
    at = draw.choice(calls)
    step = steps[at]
    if fault == "swaps":
        after = [i for i in calls if i > at]
        if after:
            steps[at], steps[after[0]] = steps[after[0]], step
        kept = [one.of is None or one.of in steps[:i] for i, one in enumerate(steps)]
        late = [one for one, is_kept in zip(steps, kept, strict=True) if not is_kept]
        program.steps[rank] = [one for one in steps if one not in late] + late
        return rank
    other = steps[draw.choice(calls)].what
    new = [Step(other, key=-1)] if fault == "replaces" else []
    if new and other.is_async:
        new.append(Step(wait_for(other), of=new[0]))
    left = [one for one in steps[at + 1 :] if one.of != step]
    program.steps[rank] = [*steps[:at], *new, *left]
    return rank


def perform(program: Program, rank: int) -> None:
    """Really make the calls of this rank."""
    groups = {"WORLD": None}
    for family in program.families[1:]:
        groups |= {name: dist.new_group(list(members)) for name, members in family.items()}
    works = {}
    for step in program.steps[rank]:
        if step.of is not None:
            works.pop(step.of)[0].wait()
            continue
        what, x = step.what, torch.ones(4)
        given = {"group": groups[what.group]}
        if what.name in POINT_TO_POINT:
            given |= {"dst" if what.name in SENDS else "src": what.peer, "tag": what.tag}
        else:
            given |= {"async_op": what.is_async}
        if what.name in ("broadcast", "reduce"):
            given |= {"src" if what.name == "broadcast" else "dst": what.peer}
        tensors = () if what.name == "barrier" else (x,)
        works[step] = getattr(dist, what.name)(*tensors, **given), x


class Run:
    """Lets the ranks of a program go on, and lets a WatchedWorld read what they write."""

    def __init__(self, program: Program, draw: random.Random):
        self.program, self.draw = program, draw
        n = program.n
        self.world = WatchedWorld()
        self.writers = []
        for rank in range(n):
            file = _file(rank)
            self.writers.append(call_log.Writer(file, rank, n))
            self.writers[-1].put(call_log.ANSWER, b"")
            self.world.ranks[rank] = watched.RankProcess(file)
        self.at = [0] * n
        self.inside: list[int | None] = [None] * n  # the number of the call
        self.numbers: list[dict[Step, int]] = [{} for _ in range(n)]
        self.seqs: dict[tuple, int] = defaultdict(int)
        self.indices: list[dict[Step, int]] = [{} for _ in range(n)]
        self.joined: dict[tuple, set[int]] = defaultdict(set)
        self.records: list[deque] = [deque(maxlen=RECORD) for _ in range(n)]
        self.made = [0] * n

    def close(self):
        for rank, writer in enumerate(self.writers):
            writer.words.release()
            writer.memory.close()
            self.world.ranks[rank].log.close()

    def is_between_calls(self, rank: int) -> bool:
        return self.inside[rank] is None and self.at[rank] < len(self.program.steps[rank])

    def has_ended(self) -> bool:
        return all(self.at[rank] == len(steps) for rank, steps in self.program.steps.items())

    def go_on(self, most: int, held=()) -> bool:
        """So many moves; False if no rank can make one."""
        for _ in range(most):
            ranks = [rank for rank in range(self.program.n) if rank not in held]
            self.draw.shuffle(ranks)
            if not any(self._move(rank) for rank in ranks):
                return False
        return True

    def _move(self, rank: int) -> bool:
        steps, at = self.program.steps[rank], self.at[rank]
        if at >= len(steps):
            return False
        if self.inside[rank] is None:
            self._enter(rank, steps[at])
            if not (steps[at].what.is_async or self._is_done(rank, steps[at])):
                return True
        elif not self._is_done(rank, steps[at]):
            return False
        self.writers[rank].leave(self.inside[rank], None, None)
        self.inside[rank] = None
        self.at[rank] += 1
        if self.at[rank] == len(steps):
            self.answer(rank)
            self.writers[rank].set_ended()
        return True

    def _enter(self, rank: int, step: Step) -> None:
        what, seq = step.what, None
        began = step.of or step
        if step.of is None:
            if what.name in POINT_TO_POINT:
                ends = (rank, what.peer) if what.name in SENDS else (what.peer, rank)
                key = (what.tag, *ends)
            else:
                key = (what.group,)
            index = self.seqs[rank, *key]
            self.seqs[rank, *key] += 1
            self.indices[rank][step] = index
            self.joined[*key, index].add(rank)
            self._record(rank, what, index)
        if began.what.name not in POINT_TO_POINT:
            seq = self.indices[rank][began]
        of = self.numbers[rank][step.of] if step.of else None
        number = self.writers[rank].enter(seq, None, of, what, {})
        self.numbers[rank][step] = self.inside[rank] = number

    def _is_done(self, rank: int, step: Step) -> bool:
        step = step.of or step
        what, index = step.what, self.indices[rank][step]
        if what.name in POINT_TO_POINT:
            ends = (rank, what.peer) if what.name in SENDS else (what.peer, rank)
            return len(self.joined[what.tag, *ends, index]) == 2
        joined = self.joined[what.group, index]
        if what.name in FROM_ROOT:
            return what.peer in joined
        if what.name in TO_ROOT and rank != what.peer:
            return True
        return joined >= set(what.members)

    def _record(self, rank: int, what: CallArgs, seq: int) -> None:
        group = ("0", "default_pg") if what.group == "WORLD" else (what.group, "undefined")
        place = {"filename": what.file, "line": what.line, "name": what.function}
        shown = {"profiling_name": f"gloo:{what.name}", "frames": [place]}
        shown |= {"is_p2p": what.name in POINT_TO_POINT, "members": what.members}
        made = record(self.made[rank], seq + 1, group, key=(what.group, seq), **shown)
        self.records[rank].append(made)
        self.made[rank] += 1

    def answer(self, rank: int) -> None:
        for made in self.records[rank]:
            joined = self.joined[made["key"]]
            made["retired"] = made["is_p2p"] or joined >= set(made["members"])
        last = self.at[rank] == len(self.program.steps[rank])
        where = ["train.py", 5, "step"]
        told = rank_log.newest_collectives(list(self.records[rank]), 0, TOLD)
        answer = {"where": where, "in_torch": self.inside[rank] is not None, "last": last}
        answer |= {"count": self.writers[rank].count, "world": 1, "exit": where, **told}
        self.writers[rank].put(call_log.ANSWER, json.dumps(answer).encode())

    def verdict(self, stalled: bool):
        """What the WatchedWorld says now."""
        for rank in range(self.program.n):
            self.answer(rank)
        self.world.poll()
        return self.world.verdict(stalled)


@functools.cache
def _file(rank: int):
    """It is used again by the next run: to make one takes long."""
    return tempfile.TemporaryFile("w+b")


def small_logs():
    """Logs that hold as little as said above, and from which a call can be read at once."""
    return (
        mock.patch.object(call_log, "SLOTS", SLOTS),
        mock.patch.object(call_log, "_YOUNG", 0),
        mock.patch.object(watched, "_stat", return_value=["S"]),
    )
