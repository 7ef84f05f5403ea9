"""How the diagnosing parents on the nodes of one job exchange messages, through the job's store.

While all is well they send nothing. A parent sends what its ranks have called when nothing has
moved for a while, when a rank has ended, and when another node has sent a message. It looks into
the store now and then to notice that.
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
    """The messages that this node sends to the others, and those that it has received.

    `verdict`: the verdict of another node. `others`: the ranks of other nodes whose present state
    is known. Each message has a count, which grows when the ranks of its node have gone on, and the
    counts of the messages that its node had received. A message that holds our own last count was
    sent while our ranks were where they are now, so it is valid. So is every message about ranks
    that have ended.
    """

    def __init__(self):
        self.store = None
        self.opening: threading.Thread | None = None
        self.name = ""
        self.clock = time.time_ns() - time.monotonic_ns()
        self.count = 0
        self.progress = ""  # what our ranks had called when we last sent it
        self.answered: dict[str, int] | None = None
        self.received: dict[str, dict] = {}  # by node, its last message
        self.others: dict[int, dict] = {}
        self.verdict: Verdict | None = None

    def open(self, store: tuple[str, int], name: str) -> None:
        """Connect to the store, in a thread: this imports torch. Each node has its own `name`."""
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

    def exchange(self, ranks: Callable[[], dict[int, dict]], send: bool) -> bool:
        """Whether ranks of other nodes have gone on.

        `ranks` returns what to send about our ranks. It is sent if `send` is set, or as an answer.
        """
        if self.store is None:
            return False
        before = {name: message["count"] for name, message in self.received.items()}
        try:
            self._receive()
            heard = {name: message["count"] for name, message in self.received.items()}
            if send or heard != (self.answered or {}):
                self._send_ranks(ranks(), heard)
        except RuntimeError:  # the store has gone with the job
            self.store = None
            return False
        return any(before.get(name, count) != count for name, count in heard.items())

    def _send_ranks(self, ranks: dict[int, dict], heard: dict[str, int]) -> None:
        records = [{**rank, "answer": rank["answer"].get("collectives")} for rank in ranks.values()]
        progress = json.dumps(records)
        self.count, self.progress = self.count + (progress != self.progress), progress
        self._send({"ranks": ranks, "heard": heard})
        self.answered = heard
        self.others = {}
        for message in self.received.values():
            states = [rank["state"]["status"] for rank in message["ranks"].values()]
            have_ended = not any(state in NOT_ENDED for state in states)
            if have_ended or message["heard"].get(self.name) == self.count:
                ahead = {"clock_ahead": message["clock"] - self.clock}
                self.others |= {int(rank): one | ahead for rank, one in message["ranks"].items()}

    def publish(self, verdict: Verdict, patience: float) -> None:
        """Send a verdict to all nodes, and wait up to `patience` seconds until they received it."""
        if self.store is None or self.verdict is not None:
            return
        try:
            self._send({"verdict": _to_plain(verdict)})
            until = time.monotonic() + patience
            heard = [f"{_PREFIX}/{name}/has heard {self.name}" for name in self.received]
            while heard and not self.store.check(heard) and time.monotonic() < until:
                time.sleep(0.05)
        except RuntimeError:
            self.store = None

    def _send(self, message: dict) -> None:
        empty = {"clock": self.clock, "count": self.count, "ranks": {}, "heard": {}}
        packed = zlib.compress(json.dumps(empty | message).encode())
        self.store.set(f"{_PREFIX}/{self.name}", packed)
        if self.name not in self._names():
            self.store.append(f"{_PREFIX}/names", f"{self.name} ")

    def _names(self) -> list[str]:
        names = f"{_PREFIX}/names"
        return self.store.get(names).decode().split() if self.store.check([names]) else []

    def _receive(self) -> None:
        for name in self._names():
            if name == self.name:
                continue
            packed = self.store.get(f"{_PREFIX}/{name}")
            message = self.received[name] = json.loads(zlib.decompress(packed))
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
