"""Where a rank listens: at a unix address for its own machine, at a TCP port for the others.

Linux chooses both, so worlds cannot collide. They travel through the group's store with a secret,
which everybody who connects has to tell. They are closed when the group is complete.
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

from collectives.backends import availability

# What the connecting rank says first: the secret of the listener, its own rank, which connection.
_HELLO = struct.Struct("=16sII")


class Door:
    def __init__(self, backlog: int):
        self.backlog = backlog
        self.secret = secrets.token_bytes(16)
        self._selector = selectors.DefaultSelector()
        listener = socket.socket(socket.AF_UNIX)
        self._add(listener, None)
        listener.bind("")  # Linux: an abstract address that nobody else has
        listener.listen(backlog)
        self.address = listener.getsockname()

    def open_port(self, address: str) -> tuple[str, int]:
        """Listen at this address by TCP, too; at which port."""
        listener = socket.create_server(
            (address, 0), family=family_of(address), backlog=self.backlog
        )
        self._add(listener, None)
        return listener.getsockname()[:2]

    def guests(self, deadline: float) -> Iterator[tuple[tuple[int, int], socket.socket]]:
        """Who comes until then and knows the secret: (rank, which connection), and its socket."""
        while (patience := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(patience):
                if key.data is None:
                    # subtle: who connected may have gone again.
                    with contextlib.suppress(OSError):
                        self._add(key.fileobj.accept()[0], bytearray())
                elif self._has_spoken(key.fileobj, key.data):
                    self._selector.unregister(key.fileobj)
                    secret, *name = _HELLO.unpack(key.data.ljust(_HELLO.size))
                    if secrets.compare_digest(secret, self.secret):
                        yield tuple(name), key.fileobj
                    else:
                        key.fileobj.close()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()

    def _add(self, connection: socket.socket, said: bytearray | None) -> None:
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, said)

    def _has_spoken(self, guest: socket.socket, said: bytearray) -> bool:
        """Whether the guest has said all, or will say no more."""
        try:
            piece = guest.recv(_HELLO.size - len(said))
        except OSError:
            piece = b""
        said += piece
        return not piece or len(said) == _HELLO.size


def hello(secret: bytes, rank: int, purpose: int) -> bytes:
    return _HELLO.pack(secret, rank, purpose)


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def own_address(store) -> str | None:
    """Where other machines find this one: at the interface by which it reaches the store.

    None if that is loopback, as on the machine where the store is. Raises ValueError if
    GLOO_SOCKET_IFNAME names no interface, or one that others cannot reach.
    """
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    if name is None:
        return way_to(_host(store)) or way_to(socket.gethostname())
    address = availability.address_of_interface(name)
    if ipaddress.ip_address(address).is_loopback:
        raise ValueError(f"GLOO_SOCKET_IFNAME={name}: other machines cannot reach {address}")
    return address


def way_to(host: str | None) -> str | None:
    """From which address of this machine its packets go there; None if they do not leave it.

    subtle: to connect a socket for datagrams sends nothing, and makes the kernel choose.
    """
    with contextlib.suppress(OSError):
        for family, kind, _, _, there in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(there)
                address = probe.getsockname()[0]
                return None if ipaddress.ip_address(address).is_loopback else address
    return None


def _host(store) -> str | None:
    """On which machine the store is; None if it is no TCPStore."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)
