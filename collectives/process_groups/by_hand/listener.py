"""Where a rank accepts connections until its group is complete: at a unix address from the ranks of
its own machine, at a TCP port from the others.

Linux chooses both, so worlds cannot collide. They travel through the group's store with a secret of
16 random bytes, which every peer sends first.

The secret keeps out a process that can reach the port, but not the store: a port scanner, another
world. It does not keep out a process that can read the store (torch's stores have no password) or
the network (nothing is encrypted).
"""

import contextlib
import ipaddress
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from collectives.process_groups import interfaces

# What the connecting rank sends first: the secret of the listener, its own rank, which connection.
_HANDSHAKE = struct.Struct("=16sII")

# A connection is closed if its handshake is not complete after so many seconds, or if so many more
# than a group can have are without one.
_HANDSHAKE_TIME = 5.0
_SPARE_CONNECTIONS = 64

# Seconds without accepting after accept has failed.
_PAUSE = 0.05


class Listener:
    """`backlog` is the number of connections that a group can have at once."""

    def __init__(self, backlog: int):
        self.backlog = backlog
        self.secret = secrets.token_bytes(16)
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[int, socket.socket] = {}  # by descriptor
        self._deadlines: dict[socket.socket, float] = {}  # of the handshakes, the oldest first
        listening = socket.socket(socket.AF_UNIX)
        self._add(listening, None)
        listening.bind("")  # Linux: an abstract address that nobody else has
        listening.listen(backlog)
        self.address: bytes = listening.getsockname()

    def open_port(self, address: str) -> tuple[str, int]:
        """Listen at this address by TCP, too. Returns address and port."""
        listening = socket.create_server(
            (address, 0), family=family_of(address), backlog=self.backlog
        )
        self._add(listening, None)
        host, port, *_ = listening.getsockname()
        return host, port

    def accept_authenticated(
        self, deadline: float
    ) -> Iterator[tuple[tuple[int, int], socket.socket]]:
        """Yield (rank, which connection) and the socket of each peer that knows the secret."""
        while (now := time.monotonic()) < deadline:
            for silent, limit in list(self._deadlines.items()):
                if limit < now:
                    self._remove(silent).close()
            # Whoever can be heard is heard before another connection may take its place.
            ready = self._selector.select(min(deadline - now, _HANDSHAKE_TIME / 5))
            for key, _ in sorted(ready, key=lambda event: event[0].data is None):
                connection, received = self._sockets[key.fd], key.data
                if received is None:
                    self._accept(connection)
                elif self._read_handshake(connection, received):
                    self._remove(connection)
                    secret, rank, purpose = _HANDSHAKE.unpack(received.ljust(_HANDSHAKE.size))
                    if secrets.compare_digest(secret, self.secret):
                        yield (rank, purpose), connection
                    else:
                        connection.close()

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()
        self._selector.close()

    def _add(self, connection: socket.socket, received: bytearray | None) -> None:
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, received)
        self._sockets[connection.fileno()] = connection

    def _remove(self, connection: socket.socket) -> socket.socket:
        self._selector.unregister(connection)
        del self._deadlines[connection], self._sockets[connection.fileno()]
        return connection

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            # subtle: whoever connected may have gone again. But if this process has no descriptors
            # left, accept fails until a connection is closed, and would take all of the processor.
            time.sleep(_PAUSE)
            return
        self._add(connection, bytearray())
        self._deadlines[connection] = time.monotonic() + _HANDSHAKE_TIME
        if len(self._deadlines) > self.backlog + _SPARE_CONNECTIONS:
            self._remove(next(iter(self._deadlines))).close()

    def _read_handshake(self, connection: socket.socket, received: bytearray) -> bool:
        """Whether the handshake is complete, or will never be."""
        try:
            piece = connection.recv(_HANDSHAKE.size - len(received))
        except OSError:
            piece = b""
        received += piece
        return not piece or len(received) == _HANDSHAKE.size


def handshake(secret: bytes, rank: int, purpose: int) -> bytes:
    return _HANDSHAKE.pack(secret, rank, purpose)


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def own_address(store: Any) -> str | None:
    """Where other machines find this one: at the interface by which it reaches the store.

    None if that is loopback, as on the machine where the store is. Raises ValueError if
    GLOO_SOCKET_IFNAME names no interface, or one that others cannot reach.
    """
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    if name is None:
        return source_address(_host_of(store)) or source_address(socket.gethostname())
    address = interfaces.address_of_interface(name)
    if ipaddress.ip_address(address).is_loopback:
        raise ValueError(f"GLOO_SOCKET_IFNAME={name}: other machines cannot reach {address}")
    return address


def source_address(host: str | None) -> str | None:
    """The address of this machine that its packets to `host` bear; None if they do not leave it.

    subtle: to connect a socket for datagrams sends nothing, and makes the kernel choose.
    """
    with contextlib.suppress(OSError):
        for family, kind, _, _, there in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(there)
                address: str = probe.getsockname()[0]
                return None if ipaddress.ip_address(address).is_loopback else address
    return None


def _host_of(store: Any) -> str | None:
    """The machine of the store; None if it is no TCPStore."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)
