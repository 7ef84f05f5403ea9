"""Carry the frames of a cable from one network interface to another, and delay one direction.

python -IS relay.py MACHINE SWITCH SECONDS

It stands for netem, which many kernels lack. It runs in the switch of a lab, without this package,
and ends when an interface is gone.
"""

import collections
import errno
import select
import socket
import sys
import time

# From <linux/if_packet.h>. With the header of virtio the kernel hands over large frames that it
# has not yet cut up, and checksums that it has not yet computed.
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_ETH_P_ALL = 3
_LARGEST = 2**17


def _open(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    opened.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    opened.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        opened.setsockopt(socket.SOL_SOCKET, option, 2**24)
    opened.bind((interface, _ETH_P_ALL))
    return opened


def _receive(interface: socket.socket) -> bytes:
    """A frame; empty if the interface has just gone down."""
    try:
        return interface.recv(_LARGEST)
    except OSError as error:
        if error.errno != errno.ENETDOWN:
            raise
        return b""


def _is_there(interface: socket.socket) -> bool:
    """subtle: the system does not report that an interface is gone if it was down before."""
    return interface.getsockname()[0] != ""


def _send(interface: socket.socket, frame: bytes) -> None:
    try:
        interface.send(frame)
    except OSError as error:
        if error.errno not in (errno.ENETDOWN, errno.ENOBUFS):
            raise


def main(machine: str, switch: str, delay: float) -> None:
    inside, outside = _open(machine), _open(switch)
    on_the_way: collections.deque[tuple[float, bytes]] = collections.deque()
    while _is_there(inside) and _is_there(outside):
        patience = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else 0.5
        ready, _, _ = select.select([inside, outside], [], [], patience)
        if outside in ready and (frame := _receive(outside)):
            _send(inside, frame)
        if inside in ready and (frame := _receive(inside)):
            on_the_way.append((time.monotonic() + delay, frame))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _send(outside, on_the_way.popleft()[1])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
