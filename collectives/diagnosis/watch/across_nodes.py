"""What the parents on the nodes of one job tell each other, through the store of the job.

While all is well nothing is told. A parent tells what its ranks have called when nothing has moved
for a while, when a rank has ended, and when another node has told something. It looks into the
store now and then to notice that.
"""

import dataclasses
import datetime
import json
import os
import threading
import time
import zlib
from collections.abc import Callable

from collectives.diagnosis.rules.rank_state import NOT_ENDED
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.timing import STORE_ANSWERS
from collectives.recording.call import from_plain, plain

_PREFIX = "collectives/diagnose"


class NodeExchange:
    """What this node tells the others, and has heard from them.

    `verdict`: what another node has found out. `others`: the ranks of other nodes whose present
    state is known. Each message bears a count, which grows when the ranks of its node have gone on,
    and the counts that it has heard from others. A message that bears our own last count was told
    while our ranks were where they are now, and is valid. So is every message about ranks that have
    ended.
    """

    def __init__(self):
        self.store = None
        self.opening: threading.Thread | None = None
        self.name = ""
        self.clock = time.time_ns() - time.monotonic_ns()
        self.count = 0
        self.progress = ""  # what the ranks had done when we told it last
        self.answered: dict[str, int] | None = None
        self.told: dict[str, dict] = {}  # by node, its last message
        self.others: dict[int, dict] = {}
        self.verdict: Verdict | None = None

    def open(self, store: tuple[str, int], name: str) -> None:
        """Connect to the store, in a thread: this imports torch. `name`: unlike other nodes'."""
        if self.opening is None:
            self.name = name
            self.opening = threading.Thread(target=self._open, args=store, daemon=True)
            self.opening.start()

    def _open(self, host: str, port: int) -> None:
        # That the store ends with the job is no news.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        import torch.distributed as dist

        timeout = datetime.timedelta(seconds=STORE_ANSWERS)
        options = {"is_master": False, "wait_for_workers": False, "timeout": timeout}
        try:
            self.store = dist.TCPStore(host, port, **options)
        except RuntimeError:
            self.opening = None  # it may not be there yet

    def close(self) -> None:
        """Wait until the connection is made: a signal ends a process that exits meanwhile."""
        if (opening := self.opening) is not None:
            opening.join()

    def exchange(self, ranks: Callable[[], dict[int, dict]], tell: bool) -> bool:
        """Whether ranks of other nodes have gone on.

        `ranks`: what to tell of ours. It is told if `tell`, or as an answer.
        """
        if self.store is None:
            return False
        before = {name: message["count"] for name, message in self.told.items()}
        try:
            self._hear()
            heard = {name: message["count"] for name, message in self.told.items()}
            if tell or heard != (self.answered or {}):
                self._tell_of(ranks(), heard)
        except RuntimeError:  # the store has gone with the job
            self.store = None
            return False
        return any(before.get(name, count) != count for name, count in heard.items())

    def _tell_of(self, ranks: dict[int, dict], heard: dict[str, int]) -> None:
        records = [{**rank, "answer": rank["answer"].get("collectives")} for rank in ranks.values()]
        progress = json.dumps(records)
        self.count, self.progress = self.count + (progress != self.progress), progress
        self._tell({"ranks": ranks, "heard": heard})
        self.answered = heard
        self.others = {}
        for message in self.told.values():
            states = [rank["state"]["status"] for rank in message["ranks"].values()]
            have_ended = not any(state in NOT_ENDED for state in states)
            if have_ended or message["heard"].get(self.name) == self.count:
                ahead = {"clock_ahead": message["clock"] - self.clock}
                self.others |= {int(rank): told | ahead for rank, told in message["ranks"].items()}

    def publish(self, verdict: Verdict, patience: float) -> None:
        """Tell all nodes. Wait up to `patience` seconds until those that listen have heard it."""
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

    def _tell(self, message: dict) -> None:
        empty = {"clock": self.clock, "count": self.count, "ranks": {}, "heard": {}}
        packed = zlib.compress(json.dumps(empty | message).encode())
        self.store.set(f"{_PREFIX}/{self.name}", packed)
        if self.name not in self._names():
            self.store.append(f"{_PREFIX}/names", f"{self.name} ")

    def _names(self) -> list[str]:
        names = f"{_PREFIX}/names"
        return self.store.get(names).decode().split() if self.store.check([names]) else []

    def _hear(self) -> None:
        for name in self._names():
            if name == self.name:
                continue
            packed = self.store.get(f"{_PREFIX}/{name}")
            message = self.told[name] = json.loads(zlib.decompress(packed))
            if "verdict" in message:
                self.verdict = _from_plain(message["verdict"])
                self.store.set(f"{_PREFIX}/{self.name}/has heard {name}", "")


def _to_plain(verdict: Verdict) -> dict:
    names = (field.name for field in dataclasses.fields(verdict) if field.name != "hints")
    values = {name: getattr(verdict, name) for name in names}
    return {**values, "guilty": [plain(call) for call in verdict.guilty]}


def _from_plain(values: dict) -> Verdict:
    guilty = tuple(map(from_plain, values["guilty"]))
    lines = {int(rank): tuple(line) for rank, line in values["lines"].items()}
    return Verdict(**{**values, "guilty": guilty, "cycle": tuple(values["cycle"]), "lines": lines})
