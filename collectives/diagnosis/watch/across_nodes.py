"""How the diagnosing parents on the nodes of one job exchange messages, through the job's store.

Each says once which machine it is, and which ranks run there. While all is well they send nothing
else. A parent sends what its ranks have called when nothing has moved for a while, when a rank has
ended, and when another node has sent a message. It looks into the store now and then to notice
that.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import psutil

from collectives.diagnosis.rules.report import format_call, location
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.timing import STORE_ANSWERS
from collectives.recording.call import as_tuples, call_from_json
from collectives.recording.ending import Ending

_PREFIX = "collectives/diagnose"

# The longest message that is unpacked, in bytes. One of 64 ranks, with all that each may tell
# (call_log.ANSWER), has a quarter of them.
_MOST = 2**26

# What reading a message raises that we did not send.
_MALFORMED = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    zlib.error,
)


class NodeExchange:
    """The messages that this node sends to the others, and those that it has received.

    `verdict`: the verdict of another node. `judge`: the node that gave it. `machines`: by rank, its
    host name. `lost`: the host of the store, once it does not answer any more. `others`: the ranks
    of other nodes whose present state is known. A message about ranks has a version, which grows
    when they have gone on since the message before, and the versions of the other nodes' messages
    that its node had received. If our latest version is among these, the message was sent while our
    ranks were where they are now, so it is valid. So is every message about ranks that have ended.
    """

    def __init__(self):
        self.store: Any = None
        self.opening: threading.Thread | None = None
        self.name = ""
        self.clock = time.time_ns() - time.monotonic_ns()
        self.version = 0
        self.sent = ""  # what our ranks had called when we last sent it
        self.acknowledged: dict[str, int] = {}  # the versions that our last message names
        self.received: dict[str, dict] = {}  # by node, its last message
        self.others: dict[int, dict] = {}
        self.is_announced = False  # which machine this is
        self.machines: dict[int, str] = {}
        self.host = self.lost = self.judge = ""
        self.verdict: Verdict | None = None

    def open(self, store: tuple[str, int], name: str) -> None:
        """Connect to the store, in a thread: this imports torch. Each node has its own `name`."""
        if self.opening is None:
            self.name, self.host = name, store[0]
            self.opening = threading.Thread(target=self._open, args=store, daemon=True)
            self.opening.start()

    def _open(self, host: str, port: int) -> None:
        try:
            self.store = connect(host, port)
        except RuntimeError:
            self.opening = None  # it may not be there yet

    def close(self) -> None:
        """Wait until the connection is made: a signal ends a process that exits meanwhile."""
        if (opening := self.opening) is not None:
            opening.join()

    def find_machines(self, ranks: Iterable[int]) -> None:
        """Announce which ranks run on this machine, and read which run on the others."""
        if self.store is None:
            return
        place = f"{_PREFIX}/machines"
        try:
            if not self.is_announced:
                name = {"machine": socket.gethostname(), "ranks": list(ranks)}
                self.store.append(place, json.dumps(name) + "\n")
                self.is_announced = True
            for line in self.store.get(place).decode(errors="replace").splitlines():
                with contextlib.suppress(*_MALFORMED):
                    entry = json.loads(line)
                    self.machines |= dict.fromkeys(map(int, entry["ranks"]), str(entry["machine"]))
        except RuntimeError:
            self._lose_store()

    def exchange(self, ranks: Callable[[], dict[int, dict]], send: bool) -> bool:
        """Whether ranks of other nodes have gone on.

        `ranks` returns what to send about our ranks. It is sent if `send` is set, or as an answer.
        """
        if self.store is None:
            return False
        before = self._received_versions()
        try:
            self._receive()
            after = self._received_versions()
            if send or after != self.acknowledged:
                self._send_ranks(ranks())
                self._update_others()
        except RuntimeError:
            self._lose_store()
            return False
        return any(before.get(name, version) != version for name, version in after.items())

    def _received_versions(self) -> dict[str, int]:
        return {name: message["version"] for name, message in self.received.items()}

    def _lose_store(self) -> None:
        """It has gone with the job, or its machine cannot be reached."""
        self.store, self.lost = None, self.host
        ended = (rank for rank in self.others.items() if Ending(rank[1]["state"]["status"]).is_over)
        self.others = dict(ended)

    def _send_ranks(self, ranks: dict[int, dict]) -> None:
        """Send what is known of our ranks, as a new version if they have gone on."""
        records = [{**rank, "answer": rank["answer"].get("collectives")} for rank in ranks.values()]
        now = json.dumps(records)
        self.version, self.sent = self.version + (now != self.sent), now
        self.acknowledged = self._received_versions()
        self._send({"ranks": ranks, "acknowledged": self.acknowledged})

    def _update_others(self) -> None:
        """Take the ranks of the messages that are valid now."""
        self.others = {}
        for message in self.received.values():
            states = [rank["state"]["status"] for rank in message["ranks"].values()]
            have_ended = all(Ending(state).is_over for state in states)
            if have_ended or message["acknowledged"].get(self.name) == self.version:
                ahead = {"clock_ahead": message["clock"] - self.clock}
                self.others |= {int(rank): one | ahead for rank, one in message["ranks"].items()}

    def publish(self, verdict: Verdict, patience: float) -> None:
        """Send a verdict to all nodes, and wait up to `patience` seconds until they received it.

        If it is another node's, wait as well: the store may end with this node's ranks.
        """
        if self.store is None:
            return
        try:
            if self.verdict is None:
                self.judge = self.name
                # Hints are about this machine alone.
                own = dataclasses.replace(verdict, hints=(), earlier=())
                self._send({"verdict": dataclasses.asdict(own)})
            until = time.monotonic() + patience
            others = (name for name in self.received if name != self.judge)
            receipts = [f"{_PREFIX}/{name}/has the verdict of {self.judge}" for name in others]
            while receipts and not self.store.check(receipts) and time.monotonic() < until:
                time.sleep(0.05)
        except RuntimeError:
            self.store = None

    def _send(self, message: dict) -> None:
        empty = {"clock": self.clock, "version": self.version, "ranks": {}, "acknowledged": {}}
        packed = zlib.compress(json.dumps(empty | message).encode())
        self.store.set(f"{_PREFIX}/{self.name}", packed)
        if self.name not in self._names():
            self.store.append(f"{_PREFIX}/names", f"{self.name} ")

    def _names(self) -> list[str]:
        names = f"{_PREFIX}/names"
        if not self.store.check([names]):
            return []
        return self.store.get(names).decode(errors="replace").split()

    def _receive(self) -> None:
        for name in self._names():
            if name == self.name:
                continue
            packed = self.store.get(f"{_PREFIX}/{name}")
            try:
                message = _unpack(packed)
            except _MALFORMED:  # as if it had not come
                continue
            self.received[name] = message
            if "verdict" in message:
                self.verdict, self.judge = message["verdict"], name
                self.store.set(f"{_PREFIX}/{self.name}/has the verdict of {name}", "")


def _unpack(packed: bytes) -> dict:
    """A message as `_send` packs it. Raises one of _MALFORMED for anything else.

    Whoever reaches the store can write there. So all that this file reads of a message is checked;
    `JobWorld.update_elsewhere` tries what stands in the ranks.
    """
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(packed, _MOST)
    if not unpacking.eof:
        raise ValueError("a message that is too long, or not complete")
    message = json.loads(text)
    for number in ("clock", "version"):
        message[number] = int(message[number])
    acknowledged = message["acknowledged"].items()
    message["acknowledged"] = {str(name): int(version) for name, version in acknowledged}
    for rank, one in message["ranks"].items():
        int(rank), Ending(one["state"]["status"])
    if "verdict" in message:
        message["verdict"] = _from_plain(message["verdict"])
    return message


def connect(host: str, port: int) -> Any:
    """A client of the job's store. RuntimeError: nobody answers there."""
    # That the store ends with the job is no news.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=STORE_ANSWERS)
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
    _give_up_soon(port)
    return store


def _give_up_soon(port: int) -> None:
    """A store whose machine has gone answers with an error, as one does that has ended.

    subtle: torch waits for most answers without a limit.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    for one in psutil.Process().net_connections("tcp"):
        if one.raddr and one.raddr.port == port:
            with socket.socket(fileno=os.dup(one.fd)) as connection:
                limit = int(STORE_ANSWERS * 1000)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
                    connection.setsockopt(socket.IPPROTO_TCP, option, 1)


def _from_plain(values: dict) -> Verdict:
    values = as_tuples(values)
    for name in ("lines", "machines"):
        values[name] = {int(rank): one for rank, one in values[name].items()}
    values["kind"] = Ending(values["kind"])
    verdict = Verdict(**values | {"guilty": tuple(map(call_from_json, values["guilty"]))})
    # What makes the report of it must not fail.
    str.lower(verdict.kind + verdict.says)
    for call in verdict.guilty:
        int(call.rank), call.name and format_call(call), location(call)
    for doing, where in verdict.lines.values():
        str.lower(doing + where)
    cycle = tuple(map(int, verdict.cycle))
    return dataclasses.replace(verdict, cycle=cycle, hints=(), earlier=())
