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

from collectives.backends.algorithms.links import Links

# A label: the number of bytes that follow, and words as in "17 all_reduce SUM float32 x 4 ring".
_WORDS = 120  # bytes
_LABEL = struct.Struct(f"=Q{_WORDS}s")

# A wait is interrupted so often, in seconds, to look at the time.
_SLICE = 0.2
_SLICE_OF_SOCKET = struct.pack("@ll", 0, int(_SLICE * 1e6))

# How often a waiting rank looks before it sleeps. It gives its core away each time, because the
# rank that it waits for may need it.
QUICK_LOOKS = 200
give_core_away = ctypes.CDLL(None).sched_yield  # unlike os.sched_yield it lets other threads run


class LostPeer(RuntimeError):
    """Another rank has closed its connection."""


class SocketLinks(Links):
    """The point-to-point object of the algorithms. `begin` must precede the messages of a call."""

    def __init__(self, rank: int, size: int, sockets: dict[int, socket.socket]):
        self.rank = rank
        self.size = size
        self.sockets = sockets
        self.words = b""
        self.deadline = 0.0
        for connection in sockets.values():
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, _SLICE_OF_SOCKET)

    def begin(self, words: str, deadline: float) -> None:
        """The next messages belong to the call with these words. It ends at `deadline`."""
        text = words.encode()
        if len(text) > _WORDS:  # long lists of tensors may differ at their end
            text = text[: _WORDS - 17] + b" " + hashlib.sha256(text).hexdigest()[:16].encode()
        self.words = text.ljust(_WORDS, b"\0")
        self.deadline = deadline

    def send(self, peer: int, tensor: torch.Tensor, tag: int = 0) -> None:
        """Returns when the memory of `tensor` may be written again."""
        self._send(peer, self._outgoing(tensor))

    def receive(self, peer: int, tensor: torch.Tensor, tag: int = 0) -> None:
        """Returns when `tensor` is filled."""
        self._receive(peer, self._incoming(tensor))

    def exchange(
        self, to: int, sent: torch.Tensor, source: int, received: torch.Tensor, tag: int = 0
    ) -> None:
        """Send and receive at once, so that a circle of ranks does not wait for itself."""
        out, come = self._outgoing(sent), self._incoming(received)
        while out.left and come.left:
            has_sent = self._send_some(to, out)
            if out.left and not self._receive_some(source, come) and not has_sent:
                self._wait(to, source)
        self._send(to, out)
        self._receive(source, come)

    def _outgoing(self, tensor: torch.Tensor) -> "_Message":
        return _Message(bytearray(_LABEL.pack(tensor.nbytes, self.words)), tensor)

    def _incoming(self, tensor: torch.Tensor) -> "_Message":
        return _Message(bytearray(_LABEL.size), tensor)

    def _send(self, peer: int, message: "_Message") -> None:
        while message.left:
            if not self._send_some(peer, message, 0):
                self._check_time(peer)

    def _receive(self, peer: int, message: "_Message") -> None:
        looks = 0
        while message.left:
            # To sleep and to be woken costs more than to look a few times, if it comes soon.
            looks += 1
            flags = socket.MSG_DONTWAIT if looks < QUICK_LOOKS else socket.MSG_WAITALL
            if self._receive_some(peer, message, flags):
                continue
            if looks < QUICK_LOOKS:
                give_core_away()
            else:
                self._check_time(peer)

    def _send_some(self, peer: int, message: "_Message", flags=socket.MSG_DONTWAIT) -> bool:
        """Send what goes now, or with other flags wait for it. False if nothing went."""
        try:
            count = self.sockets[peer].sendmsg(message.rest(), (), flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise LostPeer(f"connection closed by peer: rank {peer} has gone") from error
        message.advance(count)
        return True

    def _receive_some(self, peer: int, message: "_Message", flags=socket.MSG_DONTWAIT) -> bool:
        had_label = message.done >= _LABEL.size
        try:
            count = self.sockets[peer].recvmsg_into(message.rest(), 0, flags)[0]
        except BlockingIOError:
            return False
        except OSError as error:
            raise LostPeer(f"connection closed by peer: rank {peer} has gone") from error
        if not count:
            raise LostPeer(f"connection closed by peer: rank {peer} has gone")
        message.advance(count)
        if not had_label and message.done >= _LABEL.size:
            self._compare(peer, message)
        return True

    def _compare(self, peer: int, message: "_Message") -> None:
        size, words = _LABEL.unpack(message.label)
        own_size = message.total - _LABEL.size
        if words != self.words:
            raise RuntimeError(
                f"rank {peer} is in call {_text(words)!r}, this rank in {_text(self.words)!r}"
            )
        if size != own_size:
            raise RuntimeError(
                f"rank {peer} sent {size} bytes, and this rank expected {own_size}, "
                f"in call {_text(words)!r}"
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
    """A label and the memory of a tensor, and how many bytes of both have been moved."""

    def __init__(self, label: bytearray, tensor: torch.Tensor):
        self.label = label
        self.tensor = tensor
        self.total = len(label) + tensor.nbytes
        self.done = 0
        self._parts = [memoryview(label), *([memory_of(tensor)] if tensor.nbytes else [])]

    @property
    def left(self) -> int:
        return self.total - self.done

    def rest(self) -> list[memoryview]:
        return self._parts

    def advance(self, count: int) -> None:
        self.done += count
        while self._parts and count >= len(self._parts[0]):
            count -= len(self._parts.pop(0))
        if count:
            self._parts[0] = self._parts[0][count:]


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's own memory, as bytes. Nothing keeps the tensor alive."""
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def _text(words: bytes) -> str:
    return words.rstrip(b"\0").decode(errors="replace")
