"""How the ranks of a group find each other: a card of each in the store, then a socket a pair.

Each rank listens at an abstract unix address, which the system chooses: so worlds cannot collide,
and no file is left. The addresses travel through the group's store. Of each pair the higher rank
connects, twice: one connection is for collectives, the other one for messages.
"""

import contextlib
import json
import os
import secrets
import socket
import struct
import time
import weakref
from datetime import timedelta
from pathlib import Path

# The two connections of a pair.
COLLECTIVES, MESSAGES = 0, 1

# What the connecting rank says first: the secret of the listener, its own rank, which connection.
_HELLO = struct.Struct("=16sII")

# Bytes that a connection holds until the receiver takes them. The system grants about 0.2 MB.
_BUFFER = 2**20


class Meeting:
    """The cards of all ranks, and the sockets to the others: `sockets[purpose][rank]`."""

    def __init__(self, options, card: dict):
        """Meet the others. `card` is what this rank tells them, to be read from `cards`.

        Raises RuntimeError if a rank does not come before the group's timeout.
        """
        self.store, self.rank, self.size = options.store, options.group_rank, options.group_size
        self.timeout = options.timeout.total_seconds()
        self.deadline = time.monotonic() + self.timeout
        self.sockets: tuple[dict, dict] = {}, {}
        with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            listener.bind("")  # Linux: an abstract address that nobody else has
            listener.listen(2 * self.size)
            secret = secrets.token_bytes(16)
            self.cards = self._exchange_cards(
                card
                | {
                    "address": listener.getsockname().hex(),
                    "secret": secret.hex(),
                    "machine": _machine(),
                }
            )
            self._refuse_other_machines()
            for peer in range(self.rank):
                for purpose in (COLLECTIVES, MESSAGES):
                    self._connect(peer, purpose)
            self._accept(listener, secret)
            on_error.pop_all()
        _open.add(self)

    def _exchange_cards(self, card: dict) -> list[dict]:
        self.store.set(f"card/{self.rank}", json.dumps(card))
        keys = [f"card/{rank}" for rank in range(self.size)]
        try:
            self.store.wait(keys, timedelta(seconds=self.timeout))
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

    def _refuse_other_machines(self) -> None:
        others = [rank for rank, card in enumerate(self.cards) if card["machine"] != _machine()]
        if others:
            raise ValueError(
                f"by_hand connects ranks of one machine by unix sockets, and rank {others[0]} is "
                f"on another one than rank {self.rank}: use gloo."
            )

    def _connect(self, peer: int, purpose: int) -> None:
        card = self.cards[peer]
        connection = socket.socket(socket.AF_UNIX)
        self.sockets[purpose][peer] = connection
        connection.settimeout(self._time_left())
        try:
            connection.connect(bytes.fromhex(card["address"]))
            connection.sendall(_HELLO.pack(bytes.fromhex(card["secret"]), self.rank, purpose))
        except OSError as error:
            raise RuntimeError(
                f"rank {self.rank}/{self.size}: rank {peer} has gone before the group was complete "
                f"({error}) [by_hand]"
            ) from error
        _prepare(connection)

    def _accept(self, listener: socket.socket, secret: bytes) -> None:
        """Take the connections of the higher ranks. Others on this machine could connect, too."""
        expected = {
            (peer, purpose)
            for peer in range(self.rank + 1, self.size)
            for purpose in (COLLECTIVES, MESSAGES)
        }
        while expected:
            try:
                listener.settimeout(self._time_left())
                connection, _ = listener.accept()
                connection.settimeout(self._time_left())
                hello = connection.recv(_HELLO.size, socket.MSG_WAITALL)
            except TimeoutError as error:
                missing = sorted({peer for peer, _ in expected})
                raise RuntimeError(self._did_not_come(missing)) from error
            said, *name = _HELLO.unpack(hello.ljust(_HELLO.size))
            if not secrets.compare_digest(said, secret) or tuple(name) not in expected:
                connection.close()
                continue
            expected.discard(tuple(name))
            peer, purpose = name
            self.sockets[purpose][peer] = connection
            _prepare(connection)

    def _time_left(self) -> float:
        return max(0.001, self.deadline - time.monotonic())

    def tell_why(self, reason: str) -> str:
        """Note why the group failed, for the ranks that lose their connections because of it.

        Returns the reason that was noted first, here or by another rank.
        """
        with contextlib.suppress(Exception):  # the store may have gone with its owner
            return self.store.compare_set("failure", "", reason).decode()
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
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)


def _machine() -> str:
    """What ranks have in common that can reach each other's abstract unix addresses."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
