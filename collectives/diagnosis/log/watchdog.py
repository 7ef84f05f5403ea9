"""What NCCL's watchdog wrote of each rank -> which rank did not join which call. Pure."""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.diagnosis.rules.compare import minority
from collectives.diagnosis.rules.report import against, write
from collectives.words import ranks

_TIMEOUT = re.compile(
    r"\[Rank \d+\] Watchdog .*?SeqNum=(\d+), OpType=(\w+)(?:, (\S[^()]{0,100}?))?, Timeout\(ms\)="
)
# The sequence id stands only in what a rank writes whose call timed out. A rank that is told by
# another one to dump writes the same without it.
_STATUS = re.compile(
    r"\[PG(?: ID)? (?P<id>\d+)(?: PG GUID (?P<guid>\S+))? Rank (?P<rank>\d{1,6})\]"
    r".*?(?:at work(?: sequence id)?: (?P<seq>\d+).*?)?"
    r"\blast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+),"
    r".*?\blast completed (?:NCCL )?work: (?P<completed>-?\d+)",
    re.IGNORECASE,
)
# A log of more lines than this is none of torch.
_MOST = 100_000


class _TimedOut(NamedTuple):
    """A call that timed out, as NCCL writes it: ALLREDUCE and NumelIn=4, NumelOut=4."""

    op: str
    sizes: str | None

    def __str__(self) -> str:
        return f"{self.op}({self.sizes})" if self.sizes else self.op


@dataclass(frozen=True)
class _Status:
    """How far a rank is in one group. `failed`: the number of the call that timed out."""

    failed: int | None
    enqueued: int
    completed: int


@dataclass
class Watchdog:
    """The lines of one log. `calls`: by rank and number, the call that timed out."""

    calls: dict[tuple[int, int], _TimedOut] = field(default_factory=dict)
    groups: dict[str, dict[int, _Status]] = field(default_factory=lambda: defaultdict(dict))
    noted: int = 0

    def note(self, line: str, rank: int | None) -> None:
        """`rank`: the global one that wrote the line, where its prefix tells."""
        if self.noted >= _MOST:
            return
        if rank is not None and (found := _TIMEOUT.search(line)):
            seq, op, sizes = found.groups()
            self.calls[rank, int(seq)] = _TimedOut(op, sizes)
            self.noted += 1
        elif found := _STATUS.search(line):
            of_group = self.groups[found["guid"] or found["id"]]
            rank = int(found["rank"]) if rank is None else rank
            failed = of_group[rank].failed if rank in of_group else None
            failed = int(found["seq"]) if found["seq"] else failed
            of_group[rank] = _Status(failed, int(found["enqueued"]), int(found["completed"]))
            self.noted += 1

    def verdicts(self) -> list[str]:
        """One of each group in which a call timed out."""
        found = [self._verdict(name) for name, group in self.groups.items() if _failed(group)]
        return found or ([self._of_calls()] if self.calls else [])

    def _of_calls(self) -> str:
        """What calls alone tell, since they do not name their group: the first of each rank."""
        calls = {
            rank: (f"in {call} #{seq}", "") for (rank, seq), call in reversed(self.calls.items())
        }
        note = "the log does not name their group: look first at the ranks that it says nothing of"
        return write(f"timeout: {ranks(calls)} waited too long", calls, [note])

    def _verdict(self, name: str) -> str:
        group = self.groups[name]
        seq = min(_failed(group).values())
        joined = {rank: one for rank, one in group.items() if one.enqueued >= seq}
        absent = group.keys() - joined.keys()
        calls = {rank: self.calls[rank, seq] for rank in joined if (rank, seq) in self.calls}
        op = max((call.op for call in calls.values()), default="call")
        call = f"{op} #{seq} of group {name}"
        is_world = name == "0" or name.endswith("(default_pg)")
        silent = set(range(max(group))) - group.keys() if is_world else set()
        notes = [f"{ranks(silent)} wrote nothing about this group"] if silent else []
        if absent:
            headline = f"hang: {ranks(absent)} never joined {call}"
        elif len(set(calls.values())) > 1:
            differing = against(minority(calls), calls)
            headline = f"mismatch: different calls as #{seq} of group {name}: {differing}"
        else:
            headline = f"timeout: {ranks(joined)} joined {call}, and it did not end"
            notes.append("look first at ranks that wrote nothing, then at the network and the GPUs")
        lines = {rank: (self._line(rank, one, seq), "") for rank, one in group.items()}
        return write(headline, lines, notes)

    def _line(self, rank: int, status: _Status, seq: int) -> str:
        progress = f"last enqueued {status.enqueued}, completed {status.completed}"
        call = self.calls.get((rank, seq))
        return f"in {call}: {progress}" if call else progress


def _failed(group: dict[int, _Status]) -> dict[int, int]:
    return {rank: one.failed for rank, one in group.items() if one.failed is not None}
