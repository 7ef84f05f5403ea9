"""What NCCL's watchdog wrote of each rank -> which rank did not join which call. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.diagnosis.rules.compare import minority
from collectives.diagnosis.rules.report import against, write
from collectives.words import ranks

# torch 2.0 may leave out the number, and writes no sizes.
_TIMEOUT = re.compile(
    r"(?:\[Rank (?P<rank>\d{1,6})\] )?Watchdog .{0,200}?WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?"
    r"OpType=(?P<op>\w+)(?:, (?P<sizes>\S[^()]{0,100}?))?, Timeout\(ms\)="
)
# The sequence id stands only in what a rank writes whose call timed out. A rank that is told by
# another one to dump writes the same without it.
_STATUS = re.compile(
    r"\[PG(?: ID)? (?P<id>\d+)(?: PG GUID (?P<guid>[^]() ]*))? ?(?P<desc>\([^]]{0,100}\))? "
    r"Rank (?P<rank>\d{1,6})\]"
    r".*?(?:\bat (?:NCCL )?work(?: sequence id)?: (?P<seq>\d+).*?)?"
    r"\blast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+),"
    r".*?\blast completed (?:NCCL )?work: (?P<completed>-?\d+)",
    re.IGNORECASE,
)
_UNKNOWN_SIZE = "18446744073709551615"  # -1, of a call that is several calls
# A log of more lines than this is none of torch.
_MOST = 10_000

# In all other calls each rank needs all others, and none can be done before all have come.
_SOME_MAY_BE_DONE = {"BROADCAST", "REDUCE", "GATHER", "SCATTER", "COALESCED", "UNKNOWN"}
_MESSAGES = {"SEND", "RECV"}
_EQUAL_SIZES = {"ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "BROADCAST", "REDUCE"}


class _TimedOut(NamedTuple):
    """A call that timed out, as NCCL writes it: ALLREDUCE, 7 and NumelIn=4, NumelOut=4."""

    op: str
    seq: int | None
    sizes: str | None

    def __str__(self) -> str:
        sizes = f"({self.sizes})" if self.sizes and _UNKNOWN_SIZE not in self.sizes else ""
        return f"{self.op}{sizes}" + ("" if self.seq is None else f" #{self.seq}")

    @property
    def compared(self) -> tuple[str, str | None]:
        return self.op, self.sizes if self.op in _EQUAL_SIZES else None


@dataclass(frozen=True)
class _Status:
    """How far a rank is in one group. `failed`: the number of the call that timed out."""

    failed: int | None
    enqueued: int
    completed: int


@dataclass
class _Group:
    """`statuses`: by rank. `numbers`: by rank, its number in the group."""

    name: str
    statuses: dict[int, _Status] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)

    def failed(self) -> dict[int, int]:
        return {rank: one.failed for rank, one in self.statuses.items() if one.failed is not None}

    @property
    def is_world(self) -> bool:
        is_default = self.name == "0" or self.name.endswith("(default_pg)")
        return is_default and all(rank == number for rank, number in self.numbers.items())

    @property
    def is_several(self) -> bool:
        """Whether groups share the name, as each process of an old torch counts its own."""
        return max(Counter(self.numbers.values()).values()) > 1


@dataclass
class Watchdog:
    """The lines of one job. `calls`: by rank, those that timed out, in order."""

    calls: dict[int, list[_TimedOut]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[str, _Group] = field(default_factory=dict)
    recorded: int = 0
    first: tuple[str, int] | None = None  # the log and the number of the first line

    @property
    def is_full(self) -> bool:
        return self.recorded >= _MOST

    def note(self, text: str, rank: int | None) -> bool:
        """`rank`: the global one that wrote the line, where its prefix tells. False: not known."""
        if self.is_full:
            return True
        if found := _TIMEOUT.search(text):
            rank = int(found["rank"]) if rank is None and found["rank"] else rank
            if rank is not None:
                seq = int(found["seq"]) if found["seq"] else None
                call = _TimedOut(found["op"], seq, found["sizes"])
                self.calls[rank] += [call] if call not in self.calls[rank] else []
        elif found := _STATUS.search(text):
            self._note_status(found, rank)
        else:
            return False
        self.recorded += 1
        return True

    def _note_status(self, status: re.Match[str], rank: int | None) -> None:
        name = (status["guid"] or status["id"]) + (status["desc"] or "")
        group = self.groups.setdefault(name, _Group(name))
        rank = int(status["rank"]) if rank is None else rank
        before = group.statuses.get(rank)
        failed = int(status["seq"]) if status["seq"] else before.failed if before else None
        group.statuses[rank] = _Status(failed, int(status["enqueued"]), int(status["completed"]))
        group.numbers[rank] = int(status["rank"])

    def verdicts(self, known: Iterable[int] = ()) -> list[str]:
        """One of each group in which a call timed out. `known`: ranks that wrote anything."""
        known = {*known, *self.calls}
        groups = [group for group in self.groups.values() if group.failed()]
        found = [self._verdict(group, known) for group in groups if not group.is_several]
        reported = {rank for group in groups if not group.is_several for rank in group.failed()}
        rest = {rank: calls for rank, calls in self.calls.items() if calls and rank not in reported}
        return found + ([_of_calls(rest)] if rest else [])

    def _verdict(self, group: _Group, known: set[int]) -> str:
        seq = min(group.failed().values())
        statuses = group.statuses
        ahead = {rank for rank, status in statuses.items() if status.completed >= seq}
        absent = {rank for rank, status in statuses.items() if status.enqueued < seq}
        joined = statuses.keys() - ahead - absent
        calls = {rank: call for rank in joined if (call := self._call(rank, seq))}
        op = Counter(call.op for call in calls.values()).most_common(1)
        name = f"{op[0][0] if op else 'call'} #{seq} of group {group.name}"
        silent = (
            set(range(max(known | statuses.keys()))) - statuses.keys() if group.is_world else set()
        )
        notes = [f"{ranks(silent)} wrote nothing about this group"] if silent else []
        headline, more = _judge(name, calls, joined, ahead, absent, statuses, seq)
        lines = {rank: (self._line(rank, status, seq), "") for rank, status in statuses.items()}
        return write(headline, lines, notes + more)

    def _call(self, rank: int, seq: int) -> _TimedOut | None:
        return next((call for call in self.calls.get(rank, []) if call.seq == seq), None)

    def _line(self, rank: int, status: _Status, seq: int) -> str:
        progress = f"last enqueued {status.enqueued}, completed {status.completed}"
        call = self._call(rank, seq)
        if call is None and status.failed is not None:
            call = self._call(rank, status.failed)
        if call is None:
            return progress
        return f"in {str(call).removesuffix(f' #{seq}')}: {progress}"


def _judge(call, calls, joined, ahead, absent, statuses, seq) -> tuple[str, list[str]]:
    """The headline, and notes. Each of the sets holds ranks, by how far they are."""
    ops = {timed_out.op for timed_out in calls.values()}
    name = call.partition(" ")[2]
    if ops & _MESSAGES:
        return f"timeout: {ranks(joined)} waited too long in {call}", [
            "a message needs one other rank: see what that one does"
        ]
    if ahead and joined:
        return _further(call, name, ops, joined, ahead, statuses, seq)
    if absent:
        return f"hang: {ranks(absent)} never joined {call}", []
    compared = {rank: timed_out.compared for rank, timed_out in calls.items()}
    if len(set(compared.values())) > 1:
        who = against(minority(compared), compared)
        return f"mismatch: different calls as {name}: {who}", []
    return f"timeout: {ranks(joined)} joined {call}, and it did not end", [
        "look first at ranks that wrote nothing, then at the network and the GPUs"
    ]


def _further(call, name, ops, joined, ahead, statuses, seq) -> tuple[str, list[str]]:
    """Of ranks that are done with a call in which others wait."""
    has, wait = ("has", "have")[len(ahead) > 1], ("waits", "wait")[len(joined) > 1]
    done = min(statuses[rank].completed for rank in ahead)
    said = f"{ranks(ahead)} {has} completed #{done}, and {ranks(joined)} {wait} in {call}"
    if not ops or ops & _SOME_MAY_BE_DONE:
        return f"timeout: {said}", [
            "a root may be done before the others; what is no root made another call as that number"
        ]
    note = "a connection that breaks at the end of a call looks the same"
    only_just = max(statuses[rank].completed for rank in ahead) == seq
    return (
        f"mismatch: different calls at or before {name}: {said}",
        [note] if only_just else [],
    )


def _of_calls(calls: dict[int, list[_TimedOut]]) -> str:
    """What calls alone tell, without how far each rank was: the first of each rank."""
    first = {rank: min(each, key=lambda one: one.seq or 0) for rank, each in calls.items()}
    lines = {rank: (f"in {call}", "") for rank, call in first.items()}
    if len({(call.op, call.seq) for call in first.values()}) > 1:
        note = "if these calls are of one group, the ranks went different ways before them"
        return write(f"timeout: {ranks(first)} waited too long, in different calls", lines, [note])
    silent = set(range(max(first))) - first.keys()
    notes = [f"{ranks(silent)} did not write that: look there first"] if silent else []
    notes += ["these lines do not tell how far other ranks were"]
    where = " in the same call" if len(first) > 1 else ""
    return write(f"timeout: {ranks(first)} waited too long{where}", lines, notes)
