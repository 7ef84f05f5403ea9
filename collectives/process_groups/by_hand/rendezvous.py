"""How the ranks of a group connect: each publishes its peer info in the store, then each pair opens
two connections, one for collectives and one for messages.

Ranks of one machine connect by unix sockets, those of different machines by TCP. Of each pair, the
higher rank connects.
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
from typing import Any

from collectives.process_groups.by_hand import listener
from collectives.process_groups.by_hand.listener import Listener, handshake

Sockets = dict[int, socket.socket]  # by rank

# The two connections of a pair.
COLLECTIVES, MESSAGES = 0, 1

# Bytes that a unix socket holds until the receiver takes them. The system grants about 0.2 MB.
_BUFFER = 2**20

# Seconds for the store to say why a group failed.
_STORE_ANSWERS = 1.0


class Rendezvous:
    """What all ranks published, in `peer_info`, and the connections: `sockets[purpose][rank]`."""

    def __init__(self, options: Any, info: dict[str, Any]):
        """Publish `info`, read that of all ranks, and connect to them.

        Raises RuntimeError if a rank does not join before the group's timeout, or cannot be
        reached, and ValueError if a rank has no address for other machines.
        """
        self.store, self.rank, self.size = options.store, options.group_rank, options.group_size
        self.timeout: float = options.timeout.total_seconds()
        self.deadline: float = time.monotonic() + self.timeout
        self.sockets: tuple[Sockets, Sockets] = {}, {}
        with (
            contextlib.closing(Listener(2 * self.size)) as own_listener,
            contextlib.ExitStack() as on_error,
        ):
            on_error.callback(self.close)
            info |= {
                "machine": _machine(),
                "address": own_listener.address.hex(),
                "secret": own_listener.secret.hex(),
            }
            self.peer_info = self._exchange("peer info", info)
            self.machines = [peer["machine"] for peer in self.peer_info]
            self.ports = self._open_ports(own_listener) if self.spans_machines else []
            for peer in range(self.rank):
                for purpose in (COLLECTIVES, MESSAGES):
                    self._connect(peer, purpose)
            self._accept(own_listener)
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

    def _exchange(self, what: str, own: object) -> list[Any]:
        """Publish a value, and return those of all ranks, in rank order."""
        self.store.set(f"{what}/{self.rank}", json.dumps(own))
        keys = [f"{what}/{rank}" for rank in range(self.size)]
        try:
            self.store.wait(keys, timedelta(seconds=self._time_left()))
        except RuntimeError as error:
            missing = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
            raise RuntimeError(self._did_not_join(missing)) from error
        return [json.loads(self.store.get(key)) for key in keys]

    def _did_not_join(self, ranks: list[int]) -> str:
        names = ", ".join(map(str, ranks))
        return (
            f"rank {self.rank}/{self.size}: Timed out after {self.timeout:g} s: rank {names} did "
            "not join this group [by_hand]"
        )

    def _open_ports(self, own_listener: Listener) -> list[tuple[str, int]]:
        """Listen for the ranks of other machines. Returns the address and port of each rank."""
        hosts = self._exchange_result("host", lambda: listener.own_address(self.store))

        def open_port() -> tuple[str, int]:
            address = hosts[self.rank]
            # The machine of the store may know itself by loopback alone, and the others do not.
            others = [host for peer, host in enumerate(hosts) if host and not self._is_near(peer)]
            address = address or next(filter(None, map(listener.source_address, others)), None)
            if address is None:
                raise ValueError(
                    f"{socket.gethostname()} has no address that other machines can reach: set "
                    "GLOO_SOCKET_IFNAME to the name of its network interface"
                )
            return own_listener.open_port(address)

        return [(host, port) for host, port in self._exchange_result("port", open_port)]

    def _exchange_result(self, what: str, find: Callable[[], object]) -> list[Any]:
        """The result of `find` on each rank. Raises ValueError on all of them if one has none."""
        try:
            own = [find(), None]
        except (OSError, ValueError) as error:
            own = [None, str(error)]
        results = self._exchange(what, own)
        for rank, (_, reason) in enumerate(results):
            if reason is not None:
                raise ValueError(f"rank {rank}: {reason} [by_hand]")
        return [found for found, _ in results]

    def _is_near(self, peer: int) -> bool:
        return bool(self.machines[peer] == self.machines[self.rank])

    def _connect(self, peer: int, purpose: int) -> None:
        info, is_near = self.peer_info[peer], self._is_near(peer)
        address = bytes.fromhex(info["address"]) if is_near else self.ports[peer]
        family = socket.AF_UNIX if is_near else listener.family_of(self.ports[peer][0])
        connection = self.sockets[purpose][peer] = socket.socket(family)
        connection.settimeout(self._time_left())
        try:
            connection.connect(address)
            connection.sendall(handshake(bytes.fromhex(info["secret"]), self.rank, purpose))
        except OSError as error:
            problem = "closed its listener before the group was complete"
            if not is_near:
                problem = "cannot be reached at {}, port {}".format(*self.ports[peer])
            raise RuntimeError(
                f"rank {self.rank}/{self.size}: rank {peer} {problem} ({error}) [by_hand]"
            ) from error
        _prepare(connection)

    def _accept(self, own_listener: Listener) -> None:
        """Accept the connections of the higher ranks."""
        peers = range(self.rank + 1, self.size)
        missing = set(itertools.product(peers, (COLLECTIVES, MESSAGES)))
        accepted = own_listener.accept_authenticated(self.deadline)
        while missing:
            name, connection = next(accepted, (None, None))
            if name is None or connection is None:
                raise RuntimeError(self._did_not_join(sorted({peer for peer, _ in missing})))
            if name not in missing:
                connection.close()
                continue
            missing.discard(name)
            peer, purpose = name
            self.sockets[purpose][peer] = connection
            _prepare(connection)

    def _time_left(self) -> float:
        return max(0.001, self.deadline - time.monotonic())

    def publish_failure(self, reason: str) -> str:
        """Publish why the group failed, for the ranks that lose their connections because of it.

        Returns the reason that was published first, by this rank or another.
        """
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()

        def ask() -> None:
            with contextlib.suppress(Exception):  # the store may have gone with its owner
                answers.put(self.store.compare_set("failure", "", reason).decode())
            answers.put(reason)

        # subtle: if the cable to the store's machine is out, the store never answers.
        threading.Thread(target=ask, daemon=True).start()
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=_STORE_ANSWERS)
        return reason

    def shut_down(self) -> None:
        """Shut down all connections: whoever waits for this rank notices at once."""
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
_open: weakref.WeakSet[Rendezvous] = weakref.WeakSet()


def _close_all() -> None:
    for rendezvous in _open:
        rendezvous.close()


os.register_at_fork(after_in_child=_close_all)


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(None)
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    else:  # its buffer grows by itself, and the end of a message must not wait for more
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _machine() -> str:
    """The same for all ranks that can reach each other's abstract unix addresses."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
