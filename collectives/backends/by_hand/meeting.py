"""How the ranks of a group find each other: a card of each in the store, then a socket a pair.

Ranks of one machine connect by unix sockets, those of different machines by TCP. Of each pair the
higher rank connects, twice: one connection is for collectives, the other one for messages.
"""

import contextlib
import itertools
import json
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from collectives.backends.by_hand import door
from collectives.backends.by_hand.door import Door

# The two connections of a pair.
COLLECTIVES, MESSAGES = 0, 1

# Bytes that a unix socket holds until the receiver takes them. The system grants about 0.2 MB.
_BUFFER = 2**20

# Seconds for the store to say why a group failed.
_STORE_ANSWERS = 1.0


class Meeting:
    """The cards of all ranks, and the sockets to the others: `sockets[purpose][rank]`."""

    def __init__(self, options, card: dict):
        """Meet the others. `card` is what this rank tells them, to be read from `cards`.

        Raises RuntimeError if a rank does not come before the group's timeout, or cannot be
        reached, and ValueError if a rank has no address for other machines.
        """
        self.store, self.rank, self.size = options.store, options.group_rank, options.group_size
        self.timeout = options.timeout.total_seconds()
        self.deadline = time.monotonic() + self.timeout
        self.sockets: tuple[dict, dict] = {}, {}
        with contextlib.closing(Door(2 * self.size)) as own, contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            place = {"address": own.address.hex(), "secret": own.secret.hex()}
            self.cards = self._exchange("card", card | place | {"machine": _machine()})
            self.machines = [one["machine"] for one in self.cards]
            self.ports = self._open_ports(own) if self.spans_machines else []
            for peer in range(self.rank):
                for purpose in (COLLECTIVES, MESSAGES):
                    self._connect(peer, purpose)
            self._accept(own)
            on_error.pop_all()
        _open.add(self)

    @property
    def spans_machines(self) -> bool:
        return len(set(self.machines)) > 1

    @property
    def per_machine(self) -> int:
        """How many ranks each machine has, if all have as many, and one machine after the other.

        Else all ranks are taken for those of one machine.
        """
        blocks = [len(list(block)) for _, block in itertools.groupby(self.machines)]
        is_even = len(set(blocks)) == 1 and len(blocks) == len(set(self.machines))
        return blocks[0] if is_even else self.size

    def _exchange(self, what: str, own: object) -> list:
        """What each rank says, in rank order."""
        self.store.set(f"{what}/{self.rank}", json.dumps(own))
        keys = [f"{what}/{rank}" for rank in range(self.size)]
        try:
            self.store.wait(keys, timedelta(seconds=self._time_left()))
        except RuntimeError as error:
            missing = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
            raise RuntimeError(self._did_not_come(missing)) from error
        return [json.loads(self.store.get(key)) for key in keys]

    def _did_not_come(self, ranks: list[int]) -> str:
        names = ", ".join(map(str, ranks))
        return (
            f"rank {self.rank}/{self.size}: Timed out after {self.timeout:g} s: rank {names} had "
            "not come to this group [by_hand]"
        )

    def _open_ports(self, own: Door) -> list[tuple[str, int]]:
        """Listen for the ranks of other machines; where each rank does."""
        hosts = self._find("host", lambda: door.own_address(self.store))

        def open_port():
            address = hosts[self.rank]
            # The machine of the store may know itself by loopback alone, and the others do not.
            others = (host for peer, host in enumerate(hosts) if not self._is_near(peer))
            address = address or next(filter(None, map(door.way_to, filter(None, others))), None)
            if address is None:
                raise ValueError(
                    f"{socket.gethostname()} has no address that other machines can reach: set "
                    "GLOO_SOCKET_IFNAME to the name of its network interface"
                )
            return own.open_port(address)

        return [tuple(port) for port in self._find("port", open_port)]

    def _find(self, what: str, find: Callable) -> list:
        """What each rank finds. Raises ValueError on all of them if one does not."""
        try:
            own = [find(), None]
        except (OSError, ValueError) as error:
            own = [None, str(error)]
        answers = self._exchange(what, own)
        for rank, (_, reason) in enumerate(answers):
            if reason is not None:
                raise ValueError(f"rank {rank}: {reason} [by_hand]")
        return [found for found, _ in answers]

    def _is_near(self, peer: int) -> bool:
        return self.machines[peer] == self.machines[self.rank]

    def _connect(self, peer: int, purpose: int) -> None:
        card, is_near = self.cards[peer], self._is_near(peer)
        there = bytes.fromhex(card["address"]) if is_near else self.ports[peer]
        connection = socket.socket(socket.AF_UNIX if is_near else door.family_of(there[0]))
        self.sockets[purpose][peer] = connection
        connection.settimeout(self._time_left())
        try:
            connection.connect(there)
            connection.sendall(door.hello(bytes.fromhex(card["secret"]), self.rank, purpose))
        except OSError as error:
            problem = (
                "has gone before the group was complete"
                if is_near
                else f"cannot be reached at {there[0]}, port {there[1]}"
            )
            raise RuntimeError(
                f"rank {self.rank}/{self.size}: rank {peer} {problem} ({error}) [by_hand]"
            ) from error
        _prepare(connection)

    def _accept(self, own: Door) -> None:
        """Take the connections of the higher ranks."""
        expected = {
            (peer, purpose)
            for peer in range(self.rank + 1, self.size)
            for purpose in (COLLECTIVES, MESSAGES)
        }
        guests = own.guests(self.deadline)
        while expected:
            name, connection = next(guests, (None, None))
            if name is None:
                raise RuntimeError(self._did_not_come(sorted({peer for peer, _ in expected})))
            if name not in expected:
                connection.close()
                continue
            expected.discard(name)
            peer, purpose = name
            self.sockets[purpose][peer] = connection
            _prepare(connection)

    def _time_left(self) -> float:
        return max(0.001, self.deadline - time.monotonic())

    def tell_why(self, reason: str) -> str:
        """Note why the group failed, for the ranks that lose their connections because of it.

        Returns the reason that was noted first, here or by another rank.
        """
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()

        def ask():
            with contextlib.suppress(Exception):  # the store may have gone with its owner
                answers.put(self.store.compare_set("failure", "", reason).decode())
            answers.put(reason)

        # subtle: if the cable to the store's machine is out, the store never answers.
        threading.Thread(target=ask, daemon=True).start()
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=_STORE_ANSWERS)
        return reason

    def shut_down(self) -> None:
        """End all connections: whoever waits for this rank notices at once."""
        for connection in self._connections():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for connection in self._connections():
            connection.close()

    def _connections(self) -> list[socket.socket]:
        return [connection for peers in self.sockets for connection in peers.values()]


# subtle: a forked child, such as a worker of DataLoader, holds copies of the connections. While it
# lives, nobody would notice the death of its rank.
_open: weakref.WeakSet[Meeting] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [meeting.close() for meeting in _open])


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(None)
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    else:  # its buffer grows by itself, and the end of a message must not wait for more
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _machine() -> str:
    """What ranks have in common that can reach each other's abstract unix addresses."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
