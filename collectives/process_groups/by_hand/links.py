"""The connections for collectives: `send`, `receive` and `exchange` between two ranks.

Every message begins with a label that says which call it belongs to. The receiver compares it with
its own: so ranks that disagree about call, size or algorithm notice, and say what the other did.
"""

import ctypes
import hashlib
import select
import socket
import struct
import time

import torch

from collectives.algorithms.links import Links
from collectives.recording import counts

# A label: the number of bytes that follow, and text as in "17 all_reduce SUM float32 x 4 ring".
LABEL_TEXT = 120  # bytes
_LABEL = struct.Struct(f"=Q{LABEL_TEXT}s")

# A wait is interrupted so often, in seconds, to look at the time.
_SLICE = 0.2
_SLICE_OF_SOCKET = struct.pack("@ll", 0, int(_SLICE * 1e6))

# How often a waiting rank polls before it sleeps. It yields its core each time, because the rank
# that it waits for may need it.
SPINS_BEFORE_SLEEP = 200
sched_yield = ctypes.CDLL(None).sched_yield  # unlike os.sched_yield it lets other threads run


class LostPeer(RuntimeError):
    """Another rank has closed its connection."""

    def __init__(self, rank: int):
        super().__init__(f"connection closed by peer: rank {rank} has gone")


class SocketLinks(Links):
    """The point-to-point object of the algorithms. `begin` must precede the messages of a call."""

    def __init__(self, rank: int, size: int, sockets: dict[int, socket.socket]):
        self.rank = rank
        self.size = size
        self.sockets = sockets
        self.label = b""
        self.deadline = 0.0
        for connection in sockets.values():
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, _SLICE_OF_SOCKET)

    def begin(self, label: str, deadline: float) -> None:
        """The next messages belong to the call with this label. It ends at `deadline`."""
        text = label.encode()
        if len(text) > LABEL_TEXT:  # long lists of tensors may differ at their end
            text = text[: LABEL_TEXT - 17] + b" " + hashlib.sha256(text).hexdigest()[:16].encode()
        self.label = text.ljust(LABEL_TEXT, b"\0")
        self.deadline = deadline

    def send(self, peer: int, tensor: torch.Tensor) -> None:
        """Returns when the memory of `tensor` may be written again."""
        self._send(peer, self._outgoing(tensor))

    def receive(self, peer: int, tensor: torch.Tensor) -> None:
        """Returns when `tensor` is filled."""
        self._receive(peer, self._incoming(tensor))

    def exchange(self, to: int, sent: torch.Tensor, source: int, received: torch.Tensor) -> None:
        """Send and receive at once, so that a circle of ranks does not wait for itself."""
        outgoing, incoming = self._outgoing(sent), self._incoming(received)
        while outgoing.left and incoming.left:
            has_sent = self._send_some(to, outgoing)
            if outgoing.left and not self._receive_some(source, incoming) and not has_sent:
                self._wait(to, source)
        self._send(to, outgoing)
        self._receive(source, incoming)

    def _outgoing(self, tensor: torch.Tensor) -> "_Message":
        counts.note("by_hand.message", tensor.nbytes)
        return _Message(bytearray(_LABEL.pack(tensor.nbytes, self.label)), tensor)

    def _incoming(self, tensor: torch.Tensor) -> "_Message":
        return _Message(bytearray(_LABEL.size), tensor)

    def _send(self, peer: int, message: "_Message") -> None:
        while message.left:
            if not self._send_some(peer, message, 0):
                self._check_time(peer)

    def _receive(self, peer: int, message: "_Message") -> None:
        spins = 0
        while message.left:
            # To sleep and to be woken costs more than to poll a few times, if it arrives soon.
            spins += 1
            flags = socket.MSG_DONTWAIT if spins < SPINS_BEFORE_SLEEP else socket.MSG_WAITALL
            if self._receive_some(peer, message, flags):
                continue
            if spins < SPINS_BEFORE_SLEEP:
                sched_yield()
            else:
                self._check_time(peer)

    def _send_some(self, peer: int, message: "_Message", flags: int = socket.MSG_DONTWAIT) -> bool:
        """Send what goes now, or with other flags wait for it. False if nothing went."""
        try:
            count = self.sockets[peer].sendmsg(message.parts, (), flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise LostPeer(peer) from error
        message.advance(count)
        return True

    def _receive_some(
        self, peer: int, message: "_Message", flags: int = socket.MSG_DONTWAIT
    ) -> bool:
        had_label = message.done >= _LABEL.size
        try:
            count = self.sockets[peer].recvmsg_into(message.parts, 0, flags)[0]
        except BlockingIOError:
            return False
        except OSError as error:
            raise LostPeer(peer) from error
        if not count:
            raise LostPeer(peer)
        message.advance(count)
        if not had_label and message.done >= _LABEL.size:
            self._compare(peer, message)
        return True

    def _compare(self, peer: int, message: "_Message") -> None:
        size, label = _LABEL.unpack(message.label)
        own_size = message.total - _LABEL.size
        if label != self.label:
            raise RuntimeError(different_calls(peer, label, self.label))
        if size != own_size:
            raise RuntimeError(
                f"rank {peer} sent {size} bytes, and this rank expected {own_size}, "
                f"in call {_text(label)!r}"
            )

    def _wait(self, to: int, source: int) -> None:
        poll = select.poll()
        if to == source:
            poll.register(self.sockets[to], select.POLLIN | select.POLLOUT)
        else:
            poll.register(self.sockets[to], select.POLLOUT)
            poll.register(self.sockets[source], select.POLLIN)
        if not poll.poll(_SLICE * 1000):
            self._check_time(source)

    def _check_time(self, peer: int) -> None:
        if time.monotonic() > self.deadline:
            raise TimeoutError(f"waiting for rank {peer}")

    def has_gone(self, peer: int) -> bool:
        """Whether the other rank has closed its connection."""
        poll = select.poll()
        poll.register(self.sockets[peer], select.POLLRDHUP)
        return bool(poll.poll(0))


class _Message:
    """A label and the memory of a tensor, of which `done` bytes have been moved."""

    def __init__(self, label: bytearray, tensor: torch.Tensor):
        self.label = label
        self.tensor = tensor  # subtle: nothing else keeps the memory alive
        self.total = len(label) + tensor.nbytes
        self.done = 0
        self.parts = [memoryview(label), *([memory_of(tensor)] if tensor.nbytes else [])]

    @property
    def left(self) -> int:
        return self.total - self.done

    def advance(self, count: int) -> None:
        self.done += count
        while self.parts and count >= len(self.parts[0]):
            count -= len(self.parts.pop(0))
        if count:
            self.parts[0] = self.parts[0][count:]


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's own memory, as bytes. Nothing keeps the tensor alive."""
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def different_calls(peer: int, label: bytes, own: bytes) -> str:
    return f"rank {peer} is in call {_text(label)!r}, this rank in {_text(own)!r}"


def _text(label: bytes) -> str:
    return label.rstrip(b"\0").decode(errors="replace")
