"""The connection to one rank for messages: sends and receives frames as far as it can now."""

import socket
import struct
from collections import deque
from collections.abc import Iterator

from collectives.process_groups.by_hand.links import memory_of
from collectives.process_groups.by_hand.work import ByHandWork
from collectives.recording import counts

# The header of a frame: its kind, the number of its message, its tag, its bytes.
_HEAD = struct.Struct("=BQqQ")

# The kinds: a message is offered; it is wanted; it does not fit; here it is.
OFFER, TAKE, REFUSE, BYTES = range(4)


class Peer:
    """One other rank. `works` has what waits for it."""

    def __init__(self, rank: int, connection: socket.socket):
        self.rank = rank
        self.connection = connection
        self.has_gone = False
        self.offered: dict[int, ByHandWork] = {}  # by number: what this rank has offered
        self.taken: dict[int, ByHandWork] = {}  # by number: what it has taken, and waits for
        self._out: deque[tuple[memoryview, ByHandWork | None]] = deque()
        self._head = bytearray()
        self._left: memoryview | None = None  # memory that the next bytes fill
        self._filling: ByHandWork | None = None  # whose memory it is

    @property
    def has_more(self) -> bool:
        """Whether something has still to be sent."""
        return bool(self._out) and not self.has_gone

    def works(self) -> list[ByHandWork]:
        sending = [work for _, work in self._out]
        works = [*self.offered.values(), *self.taken.values(), *sending, self._filling]
        return [work for work in works if work is not None]

    def forget(self) -> None:
        """The other rank has gone."""
        self.has_gone = True
        self.offered, self.taken, self._left, self._filling = {}, {}, None, None
        self._out.clear()

    def put(self, kind: int, number: int, tag: int = 0, nbytes: int = 0) -> None:
        self._put(_HEAD.pack(kind, number, tag, nbytes), None)

    def _put(self, data: bytes | memoryview, work: ByHandWork | None) -> None:
        self._out.append((memoryview(data), work))

    def put_bytes(self, number: int, work: ByHandWork) -> None:
        """The tensor of a send, which ends when its last byte has been sent."""
        (tensor,) = work.tensors
        counts.note("by_hand.message", tensor.nbytes)
        head = _HEAD.pack(BYTES, number, 0, tensor.nbytes)
        # subtle: after the last byte the other rank may leave, so nothing empty may follow it.
        self._put(head, None if tensor.nbytes else work)
        if tensor.nbytes:
            self._put(memory_of(tensor), work)

    def write(self) -> None:
        """Send what the connection takes now. Raises OSError if the other rank has gone."""
        try:
            while self._out:
                data, work = self._out[0]
                data = data[self.connection.send(data) :]
                self._out[0] = data, work
                if not data:
                    self._out.popleft()
                    if work is not None:
                        work.end()
        except BlockingIOError:
            pass

    def read(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the frames that have arrived: kind, number, tag and bytes. Tensors are filled.

        Raises OSError if the other rank has gone.
        """
        try:
            while True:
                if self._left is not None:
                    self._read_bytes()
                    continue
                piece = self.connection.recv(_HEAD.size - len(self._head))
                _check_end(len(piece))
                self._head += piece
                if len(self._head) == _HEAD.size:
                    frame, self._head = _HEAD.unpack(self._head), bytearray()
                    if frame[0] == BYTES:
                        self._filling = self.taken.pop(frame[1])
                        self._left = memory_of(self._filling.tensors[0])
                    else:
                        yield frame
        except BlockingIOError:
            pass

    def _read_bytes(self) -> None:
        if self._left:
            count = self.connection.recv_into(self._left)
            _check_end(count)
            self._left = self._left[count:]
        if not self._left and self._filling is not None:
            work, self._left, self._filling = self._filling, None, None
            work.end()


def _check_end(count: int) -> None:
    """Raises OSError if nothing was received: the connection is at its end."""
    if not count:
        raise ConnectionResetError
