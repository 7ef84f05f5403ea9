"""Memory that the ranks of one machine share, and the signs by which they wait for each other.

Every rank has a slot in each of three banks: it writes into its own slot, and reads all of them. A
counter per rank says how far it has come. `meet` is the only wait: a rank raises its own counter,
then waits until the others have come as far. The last one to come wakes those that sleep.

subtle: nothing but the order of the writes makes the data visible before the counter. x86 keeps
that order. Other processors do not, and there is no fence in Python: they get no shared memory.
"""

import ctypes
import mmap
import os
import platform
import socket
import struct
import time

import torch

from collectives.backends.by_hand.links import QUICK_LOOKS, LostPeer, SocketLinks, give_core_away

SLOT = 2**19  # bytes of a rank's data in a bank
BANKS = 3
_LABEL = 128  # bytes in front of a slot: which call wrote it
_LINE = 64  # bytes between two counters, so that they do not share a line of the cache

_SLICE = 0.05  # seconds of sleep, after which a rank asks whether the other one still lives

# So many views of the memory are kept, because a program makes the same calls again and again.
_VIEWS = 4096

_ANSWER = 200  # bytes of what rank 0 tells the others: an empty text, or why there is no memory

_libc = ctypes.CDLL(None)
_libc.memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_libc.memmove.restype = None
copy_bytes = _libc.memmove  # (to, from, count): without Python's lock, and in one thread

# A futex (man 2 futex): sleep while a word of memory holds a value, and wake who sleeps there.
_FUTEX, _SLEEP, _WAKE, _EVERYONE = 202, 0, 1, 2**31 - 1
_futex = _libc.syscall
_futex.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]
_SLEEP_TIME = struct.pack("@ll", 0, int(_SLICE * 1e9))


def missing() -> str | None:
    """Why this machine's ranks cannot share memory; None if they can."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"{platform.machine()} does not keep the order of writes as x86 does"
    return None if hasattr(os, "memfd_create") else "this system has no memfd_create"


class SharedMemory:
    """The memory of a group. `step` counts the meetings, `chunk` the banks that were filled."""

    def __init__(self, links: SocketLinks, fd: int):
        self.links = links
        size = links.size
        self.memory = mmap.mmap(fd, _bytes(size))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        # The first counter says which step all ranks have come to, the others where each one is.
        self.counters = memoryview(self.memory)[: (1 + size) * _LINE].cast("q")
        self.places = [(1 + rank) * _LINE // 8 for rank in range(size)]
        self.others = [rank for rank in range(size) if rank != links.rank]
        self.step = 0
        self.chunk = 0
        self._views: dict[tuple, torch.Tensor] = {}

    def offset(self, bank: int, rank: int) -> int:
        """Where the data of a slot begins, in bytes."""
        slots = (1 + self.links.size) * _LINE + (bank * self.links.size + rank) * (_LABEL + SLOT)
        return slots + _LABEL

    def slot(self, dtype: torch.dtype, bank: int, rank: int, start: int, stop: int) -> torch.Tensor:
        """Some elements of a slot, as a tensor."""
        if start == stop:
            return torch.empty(0, dtype=dtype)  # frombuffer makes none
        key = dtype, bank, rank, start, stop
        if key not in self._views:
            offset = self.offset(bank, rank) + start * dtype.itemsize
            view = torch.frombuffer(self.memory, dtype=dtype, count=stop - start, offset=offset)
            if len(self._views) > _VIEWS:
                self._views.clear()
            self._views[key] = view
        return self._views[key]

    def label(self, bank: int) -> None:
        """Note which call fills this bank."""
        start = self.offset(bank, self.links.rank) - _LABEL
        self.memory[start : start + len(self.links.words)] = self.links.words

    def compare_labels(self, bank: int) -> None:
        """Raises RuntimeError if another rank fills this bank for another call."""
        words = self.links.words
        for rank in self.others:
            start = self.offset(bank, rank) - _LABEL
            other = self.memory[start : start + len(words)]
            if other != words:
                texts = [text.rstrip(b"\0").decode(errors="replace") for text in (other, words)]
                raise RuntimeError(
                    f"rank {rank} is in call {texts[0]!r}, this rank in {texts[1]!r}"
                )

    def meet(self) -> None:
        """Wait until every rank has come to the same step."""
        self.step += 1
        counters, step = self.counters, self.step
        counters[self.places[self.links.rank]] = step
        for rank in self.others:
            place, looks = self.places[rank], 0
            while counters[place] < step and counters[0] < step:
                looks += 1
                if looks < QUICK_LOOKS:
                    give_core_away()
                else:
                    self._sleep(rank, place)
        if counters[0] < step:
            counters[0] = step
            _futex(_FUTEX, self.address, _WAKE, _EVERYONE, None)

    def _sleep(self, rank: int, place: int) -> None:
        """Sleep until all have come, or for a while.

        subtle: of two ranks that come at once, one sees both counters and wakes the other. A store
        may be late for another core, but no later than the next call of the system.
        """
        counters, step = self.counters, self.step
        _futex(_FUTEX, self.address, _SLEEP, (step - 1) % 2**32, _SLEEP_TIME)
        if counters[0] >= step or counters[place] >= step:
            return
        # subtle: it may have raised its counter, and then left.
        if self.links.has_gone(rank) and counters[place] < step:
            raise LostPeer(f"connection closed by peer: rank {rank} has gone")
        if time.monotonic() > self.links.deadline:
            raise TimeoutError(f"waiting for rank {rank}")


def open_together(links: SocketLinks) -> SharedMemory | str:
    """The memory of the group, or why there is none: the same on all ranks.

    Rank 0 makes a file without a name and sends its descriptor to the others. So nothing is left,
    however the ranks end.
    """
    if links.rank:
        return _receive(links)
    try:
        fd = os.memfd_create("collectives-by-hand")
    except OSError as error:
        return _tell(links, f"no memory to share: {error.strerror}")
    try:
        # subtle: without this, a machine that is out of memory kills the rank at its first write.
        os.posix_fallocate(fd, 0, _bytes(links.size))
        shared = SharedMemory(links, fd)
    except OSError as error:
        return _tell(links, f"no memory to share: {error.strerror}")
    else:
        _tell(links, "", [fd])
        return shared
    finally:
        os.close(fd)


def _tell(links: SocketLinks, reason: str, fds: list[int] | None = None) -> str:
    message = reason.encode()[:_ANSWER].ljust(_ANSWER)
    for peer, connection in links.sockets.items():
        try:
            socket.send_fds(connection, [message], fds or [])
        except OSError as error:
            raise LostPeer(f"connection closed by peer: rank {peer} has gone") from error
    return reason


def _receive(links: SocketLinks) -> SharedMemory | str:
    while True:
        try:
            answer, fds, *_ = socket.recv_fds(links.sockets[0], _ANSWER, 1, socket.MSG_WAITALL)
            break
        except BlockingIOError:
            if time.monotonic() > links.deadline:
                raise TimeoutError("waiting for rank 0") from None
    if not answer:  # the connection is at its end
        raise LostPeer("connection closed by peer: rank 0 has gone")
    if not fds:
        return answer.decode().strip()
    try:
        return SharedMemory(links, fds[0])
    finally:
        os.close(fds[0])


def _bytes(size: int) -> int:
    return (1 + size) * _LINE + BANKS * size * (_LABEL + SLOT)
