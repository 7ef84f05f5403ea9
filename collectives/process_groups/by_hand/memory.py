"""Memory that the ranks of one machine share, and the counters by which they wait for each other.

Every rank has a slot in each of three banks: it writes into its own slot, and reads all of them.
`barrier` is the only wait: a rank raises its own counter to the next step, then waits until those
of the others have reached it. The last rank to arrive wakes those that sleep.

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
from typing import Any

import torch

from collectives.process_groups.by_hand.links import (
    LABEL_TEXT,
    SPINS_BEFORE_SLEEP,
    LostPeer,
    SocketLinks,
    different_calls,
    sched_yield,
)

SLOT = 2**19  # bytes of a rank's data in a bank
BANKS = 3
_LABEL = 128  # bytes in front of a slot: which call wrote it
_LINE = 64  # bytes between two counters, so that they do not share a line of the cache

_SLICE = 0.05  # seconds of sleep, after which a rank asks whether the other one still lives

# So many views of the memory are kept, because a program makes the same calls again and again.
_VIEWS = 1024

_ANSWER = 200  # bytes of the answer of rank 0: an empty text, or why there is no memory

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
    """The memory of a group. `step` counts the barriers, `chunk` the banks that were filled."""

    def __init__(self, links: SocketLinks, fd: int):
        self.links = links
        size = links.size
        self.memory = mmap.mmap(fd, _bytes(size))
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        # The first counter holds the step that all ranks have reached, the others that of each.
        self.counters = memoryview(self.memory)[: (1 + size) * _LINE].cast("q")
        self.positions = [(1 + rank) * _LINE // 8 for rank in range(size)]
        self.others = [rank for rank in range(size) if rank != links.rank]
        self.step = 0
        self.chunk = 0
        # Where the data of a slot begins, in bytes: offsets[bank][rank].
        first = (1 + size) * _LINE + _LABEL
        slots = [first + number * (_LABEL + SLOT) for number in range(BANKS * size)]
        self.offsets = [slots[bank * size : (bank + 1) * size] for bank in range(BANKS)]
        self._views: dict[tuple[Any, ...], list[torch.Tensor]] = {}

    def address(self, bank: int, rank: int) -> int:
        """Where the data of a slot begins in the memory of this process."""
        return self.base + self.offsets[bank][rank]

    def slots(self, dtype: torch.dtype, bank: int, start: int, stop: int) -> list[torch.Tensor]:
        """The elements from `start` to `stop`, at least one, of the slots of all ranks."""
        key = dtype, bank, start, stop
        found = self._views.get(key)
        if found is None:
            if len(self._views) > _VIEWS:
                self._views.clear()
            count, skipped = stop - start, start * dtype.itemsize
            found = self._views[key] = [
                torch.frombuffer(self.memory, dtype=dtype, count=count, offset=offset + skipped)
                for offset in self.offsets[bank]
            ]
        return found

    def label(self, bank: int) -> None:
        """Write into this bank which call fills it."""
        start = self.offsets[bank][self.links.rank] - _LABEL
        self.memory[start : start + LABEL_TEXT] = self.links.label

    def compare_labels(self, bank: int) -> None:
        """Raises RuntimeError if another rank fills this bank for another call."""
        label, offsets = self.links.label, self.offsets[bank]
        for rank in self.others:
            start = offsets[rank] - _LABEL
            other = self.memory[start : start + LABEL_TEXT]
            if other != label:
                raise RuntimeError(different_calls(rank, other, label))

    def barrier(self) -> None:
        """Wait until every rank has reached the same step."""
        self.step += 1
        counters, step = self.counters, self.step
        counters[self.positions[self.links.rank]] = step
        for rank in self.others:
            position, spins = self.positions[rank], 0
            while counters[position] < step and counters[0] < step:
                spins += 1
                if spins < SPINS_BEFORE_SLEEP:
                    sched_yield()
                else:
                    self._sleep(rank, position)
        if counters[0] < step:
            counters[0] = step
            _futex(_FUTEX, self.base, _WAKE, _EVERYONE, None)

    def _sleep(self, rank: int, position: int) -> None:
        """Sleep until all have arrived, or for a while.

        subtle: of two ranks that arrive at once, one sees both counters and wakes the other. A
        store may be late for another core, but no later than the next call of the system.
        """
        counters, step = self.counters, self.step
        _futex(_FUTEX, self.base, _SLEEP, (step - 1) % 2**32, _SLEEP_TIME)
        if counters[0] >= step or counters[position] >= step:
            return
        # subtle: it may have raised its counter, and then left.
        if self.links.has_gone(rank) and counters[position] < step:
            raise LostPeer(rank)
        if time.monotonic() > self.links.deadline:
            raise TimeoutError(f"waiting for rank {rank}")


def open_together(links: SocketLinks) -> SharedMemory | str:
    """The memory of the group, or why there is none: the same on all ranks.

    Rank 0 makes a file without a name and sends its descriptor to the others. So nothing is left,
    however the ranks end.
    """
    if links.rank:
        return _receive_answer(links)
    try:
        fd = os.memfd_create("collectives-by-hand")
    except OSError as error:
        return _send_answer(links, f"no memory to share: {error.strerror}")
    try:
        # subtle: without this, a machine that is out of memory kills the rank at its first write.
        os.posix_fallocate(fd, 0, _bytes(links.size))
        shared = SharedMemory(links, fd)
    except OSError as error:
        return _send_answer(links, f"no memory to share: {error.strerror}")
    else:
        _send_answer(links, "", [fd])
        return shared
    finally:
        os.close(fd)


def _send_answer(links: SocketLinks, reason: str, fds: list[int] | None = None) -> str:
    message = reason.encode()[:_ANSWER].ljust(_ANSWER)
    for peer, connection in links.sockets.items():
        try:
            socket.send_fds(connection, [message], fds or [])
        except OSError as error:
            raise LostPeer(peer) from error
    return reason


def _receive_answer(links: SocketLinks) -> SharedMemory | str:
    while True:
        try:
            answer, fds, *_ = socket.recv_fds(links.sockets[0], _ANSWER, 1, socket.MSG_WAITALL)
            break
        except BlockingIOError:
            if time.monotonic() > links.deadline:
                raise TimeoutError("waiting for rank 0") from None
    if not answer:  # the connection is at its end
        raise LostPeer(0)
    if not fds:
        return answer.decode().strip()
    try:
        return SharedMemory(links, fds[0])
    finally:
        os.close(fds[0])


def _bytes(size: int) -> int:
    return (1 + size) * _LINE + BANKS * size * (_LABEL + SLOT)
