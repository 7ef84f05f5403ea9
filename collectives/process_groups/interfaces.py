"""The network interfaces of this machine."""

import socket
import sys

# The network interface for connections within this machine.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def address_of_interface(name: str) -> str:
    """The IPv4 address of an interface, of the first one in a list such as GLOO_SOCKET_IFNAME has.

    Raises OSError if there is none.
    """
    import psutil

    for found in psutil.net_if_addrs().get(name.partition(",")[0], []):
        if found.family == socket.AF_INET:
            return str(found.address)
    raise OSError(f"GLOO_SOCKET_IFNAME={name}: no interface of this machine has that name")
