"""The machines of one job: what their parents tell each other, through the store that the job already has.

While all is well nothing is told. A parent tells what its ranks have called when nothing has moved for a while, when a rank has
ended, and when another machine has told something; to notice that it looks into the store now and then.
"""

import dataclasses
import datetime
import json
import os
import threading
import time
import zlib
from collections.abc import Callable

from collectives.diagnosis.rules.snapshot import NOT_ENDED, Verdict
from collectives.recording.call import from_plain, plain

_PREFIX = "collectives/diagnose"

# A store on another machine has this long to answer, in seconds.
_PATIENCE = 5.0


class Machines:
    """`verdict`: what another machine has found out. `others`: the ranks of other machines of which we know how they are now.

    Whatever a machine tells bears a count, which grows when its ranks have gone on, and the counts that it has heard of others:
    what answers our own last words was told while our ranks stood where they stand. So does what is told of ranks that have ended.
    """

    def __init__(self):
        self.store = None
        self.opening: threading.Thread | None = None
        self.name = ""
        self.clock = time.time_ns() - time.monotonic_ns()
        self.count = 0
        self.progress = ""
        self.answered: dict[str, int] | None = None
        self.told: dict[str, dict] = {}
        self.others: dict[int, dict] = {}
        self.verdict: Verdict | None = None

    def open(self, place: tuple[str, int], name: str) -> None:
        """Connect to the store while others go on: torch is imported for it. `name`: unlike those of the other machines."""
        if self.opening is None:
            self.name = name
            self.opening = threading.Thread(target=self._open, args=place, daemon=True)
            self.opening.start()

    def _open(self, host: str, port: int) -> None:
        os.environ.setdefault(
            "TORCH_CPP_LOG_LEVEL", "FATAL"
        )  # that the store ends with the job is no news
        import torch.distributed as dist

        patience = datetime.timedelta(seconds=_PATIENCE)
        try:
            self.store = dist.TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=patience
            )
        except RuntimeError:
            self.opening = None  # it may not be there yet

    def close(self) -> None:
        """Have a connection that is being made come to an end: who leaves in the midst of it is ended by a signal."""
        if (opening := self.opening) is not None:
            opening.join()

    def exchange(self, ranks: Callable[[], dict[int, dict]], tell: bool) -> bool:
        """Whether ranks of other machines have gone on. `ranks`: what we have to tell of ours, as an answer or if `tell`."""
        if self.store is None:
            return False
        before = {name: one["count"] for name, one in self.told.items()}
        try:
            self._hear()
            heard = {name: one["count"] for name, one in self.told.items()}
            if tell or heard != (self.answered or {}):
                self._tell_of(ranks(), heard)
        except RuntimeError:  # the store has gone with the job
            self.store = None
        return (
            any(before.get(name, count) != count for name, count in heard.items())
            if self.store
            else False
        )

    def _tell_of(self, ranks: dict[int, dict], heard: dict[str, int]) -> None:
        progress = json.dumps(
            [{**one, "answer": one["answer"].get("collectives")} for one in ranks.values()]
        )
        self.count, self.progress = self.count + (progress != self.progress), progress
        self._tell({"ranks": ranks, "heard": heard})
        self.answered = heard
        self.others = {}
        for one in self.told.values():
            ended = all(rank["state"]["status"] not in NOT_ENDED for rank in one["ranks"].values())
            if ended or one["heard"].get(self.name) == self.count:
                later = one["clock"] - self.clock
                self.others |= {
                    int(number): {**rank, "later": later} for number, rank in one["ranks"].items()
                }

    def publish(self, verdict: Verdict, patience: float) -> None:
        """Tell all machines, and give those that listen so many seconds to hear it before we end our part of the job."""
        if self.store is None or self.verdict is not None:
            return
        try:
            self._tell({"verdict": _to_plain(verdict)})
            until = time.monotonic() + patience
            heard = [f"{_PREFIX}/{name}/has heard {self.name}" for name in self.told]
            while heard and not self.store.check(heard) and time.monotonic() < until:
                time.sleep(0.05)
        except RuntimeError:
            self.store = None

    def _tell(self, what: dict) -> None:
        what = {"clock": self.clock, "count": self.count, "ranks": {}, "heard": {}, **what}
        self.store.set(f"{_PREFIX}/{self.name}", zlib.compress(json.dumps(what).encode()))
        if self.name not in self._names():
            self.store.append(f"{_PREFIX}/names", f"{self.name} ")

    def _names(self) -> list[str]:
        names = f"{_PREFIX}/names"
        return self.store.get(names).decode().split() if self.store.check([names]) else []

    def _hear(self) -> None:
        for name in self._names():
            if name != self.name:
                one = self.told[name] = json.loads(
                    zlib.decompress(self.store.get(f"{_PREFIX}/{name}"))
                )
                if "verdict" in one:
                    self.verdict = _from_plain(one["verdict"])
                    self.store.set(f"{_PREFIX}/{self.name}/has heard {name}", "")


def _to_plain(verdict: Verdict) -> dict:
    fields = {
        field.name: getattr(verdict, field.name)
        for field in dataclasses.fields(verdict)
        if field.name != "hints"
    }
    return {**fields, "guilty": [plain(call) for call in verdict.guilty]}


def _from_plain(told: dict) -> Verdict:
    lines = {int(rank): tuple(line) for rank, line in told["lines"].items()}
    return Verdict(
        **{
            **told,
            "guilty": tuple(map(from_plain, told["guilty"])),
            "cycle": tuple(told["cycle"]),
            "lines": lines,
        }
    )
