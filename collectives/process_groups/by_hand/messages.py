"""Messages between two ranks: send, receive, tags and any source.

A thread of the group moves them, so they go on while the program computes. The sender offers a
message, and the receiver takes it when a receive with its tag has begun; only then do the bytes
travel, straight from tensor to tensor.

They have connections of their own. On those for collectives a rank reads nothing but the message
that it waits for, in the thread that waits, which is 3 to 5 times as fast for 4 bytes (measured).
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch

from collectives.process_groups.by_hand.frames import OFFER, REFUSE, TAKE, Peer
from collectives.process_groups.by_hand.links import LostPeer
from collectives.process_groups.by_hand.work import ByHandWork

# Seconds that the last bytes get when the group is closed.
_PATIENCE_AT_END = 5.0

_DESTROYED = "the group was destroyed before it had ended"


class Send(ByHandWork):
    def __init__(self, group: Any, tensor: torch.Tensor, peer: int, tag: int):
        super().__init__(f"send to rank {peer}", group, [tensor])
        self.peer, self.tag = peer, tag

    def start(self, is_async: bool) -> None:
        self.group.messages.add(self)


class Receive(ByHandWork):
    """`peer` is None for a message from any rank."""

    def __init__(self, group: Any, tensor: torch.Tensor, peer: int | None, tag: int):
        source = "any rank" if peer is None else f"rank {peer}"
        super().__init__(f"recv from {source}", group, [tensor])
        self.peer, self.tag = peer, tag

    def start(self, is_async: bool) -> None:
        self.group.messages.add(self)


class SocketMessages:
    """All messages of a group. Only its thread touches the connections; it starts when needed."""

    def __init__(self, sockets: dict[int, socket.socket]):
        self.peers = {rank: Peer(rank, connection) for rank, connection in sockets.items()}
        self.lock = threading.Lock()
        self.new: list[Send | Receive] = []
        self.receives: list[Receive] = []  # posted, in order
        self.offers: list[tuple[Peer, int, int, int]] = []  # (peer, number, tag, bytes), in order
        self.count = 0  # of the messages that this rank has offered
        self.thread: threading.Thread | None = None
        self.closed_at: float | None = None
        self.ended: str | None = None  # why no message can be sent any more

    def add(self, work: Send | Receive) -> None:
        with self.lock:
            if self.ended is not None:
                work.refuse(self.ended)
                return
            self.new.append(work)
            if self.thread is None:
                self.alarm = os.eventfd(0, os.EFD_NONBLOCK)
                self.thread = threading.Thread(
                    target=self._run, name="collectives-by-hand-messages", daemon=True
                )
                self.thread.start()
            # subtle: with the lock, or `close` could give the number of `alarm` to another file.
            os.eventfd_write(self.alarm, 1)

    def close(self) -> None:
        """Send the last bytes. What still waits for another rank has failed."""
        if threading.current_thread() is self.thread:
            return
        with self.lock:
            self.closed_at, thread, self.thread = time.monotonic(), self.thread, None
            self.ended = self.ended or _DESTROYED
        if thread is not None:
            os.eventfd_write(self.alarm, 1)
            thread.join()
            os.close(self.alarm)

    def _run(self) -> None:
        error: Exception | None = None
        try:
            with selectors.DefaultSelector() as selector:
                self._move(selector)
        except Exception as caught:
            error = RuntimeError(
                f"the thread for messages ended: {type(caught).__name__}: {caught}"
            )
        with self.lock:
            self.ended = self.ended or str(error)
        for work in (*self._pending(), *self.new):
            if error is None:
                work.refuse(_DESTROYED)
            else:
                work.end(error)

    def _move(self, selector: selectors.BaseSelector) -> None:
        selector.register(self.alarm, selectors.EVENT_READ)
        for peer in self.peers.values():
            peer.connection.setblocking(False)
            selector.register(peer.connection, selectors.EVENT_READ, peer)
        while not self._is_done():
            for key, _ in selector.select(self._patience()):
                if key.data is None:
                    os.eventfd_read(self.alarm)
                else:
                    self._serve(key.data)
            self._begin_new()
            self._end_late()
            for peer in self.peers.values():
                self._watch(selector, peer)

    def _is_done(self) -> bool:
        """Whether the group is closed, and its last bytes have gone out or had time enough."""
        if self.closed_at is None:
            return False
        is_late = time.monotonic() > self.closed_at + _PATIENCE_AT_END
        return is_late or not any(peer.has_more for peer in self.peers.values())

    def _watch(self, selector: selectors.BaseSelector, peer: Peer) -> None:
        """Ask for what the connection needs next."""
        if peer.has_gone:
            if peer.connection in selector.get_map():
                selector.unregister(peer.connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.has_more else 0)
        if selector.get_key(peer.connection).events != events:
            selector.modify(peer.connection, events, peer)

    def _pending(self) -> list[ByHandWork]:
        waiting = (work for peer in self.peers.values() for work in peer.works())
        return [work for work in (*self.receives, *waiting) if not work.is_completed()]

    def _patience(self) -> float | None:
        """Seconds until the next time limit."""
        if self.closed_at is not None:
            return 0.1
        deadline = min((work.deadline for work in self._pending()), default=None)
        return None if deadline is None else max(0.0, deadline - time.monotonic()) + 0.001

    def _begin_new(self) -> None:
        while self.new:
            self._begin(self.new[0])
            with self.lock:  # only now, so that one that could not begin fails with the others
                self.new.pop(0)

    def _begin(self, work: Send | Receive) -> None:
        if work.peer is not None and self.peers[work.peer].has_gone:
            self._fail([work], work.peer)
        elif isinstance(work, Receive):
            self.receives.append(work)
            self._match()
        else:
            peer, self.count = self.peers[work.peer], self.count + 1
            peer.offered[self.count] = work
            peer.put(OFFER, self.count, work.tag, work.tensors[0].nbytes)
            self._write(peer)

    def _match(self) -> None:
        """Give the offers to the receives, both in their order."""
        for receive in list(self.receives):
            for offer in self.offers:
                peer, number, tag, nbytes = offer
                if receive.peer in (None, peer.rank) and receive.tag == tag:
                    self.offers.remove(offer)
                    self.receives.remove(receive)
                    self._take(receive, peer, number, nbytes)
                    break

    def _take(self, receive: Receive, peer: Peer, number: int, nbytes: int) -> None:
        receive.source = peer.rank
        size = receive.tensors[0].nbytes
        if size == nbytes:
            peer.taken[number] = receive
            peer.put(TAKE, number)
        else:
            peer.put(REFUSE, number, 0, size)
            receive.refuse(f"the message has {nbytes} bytes, the tensor for it {size}")
        self._write(peer)

    def _serve(self, peer: Peer) -> None:
        # subtle: what a rank sent before it left is read first.
        try:
            for kind, number, tag, nbytes in peer.read():
                self._frame(peer, kind, number, tag, nbytes)
        except OSError:
            self._lose(peer)
        self._write(peer)

    def _frame(self, peer: Peer, kind: int, number: int, tag: int, nbytes: int) -> None:
        if kind == OFFER:
            self.offers.append((peer, number, tag, nbytes))
            self._match()
            return
        send = peer.offered.pop(number)
        if kind == TAKE:
            peer.put_bytes(number, send)
        else:
            size = send.tensors[0].nbytes
            send.refuse(f"the message has {size} bytes, the tensor for it {nbytes}")

    def _write(self, peer: Peer) -> None:
        with contextlib.suppress(OSError):  # the end will be read, after what still arrives
            peer.write()

    def _end_late(self) -> None:
        now = time.monotonic()
        for work in self._pending():
            if now > work.deadline:
                # subtle: its bytes may still arrive, so its memory is kept.
                self.receives = [receive for receive in self.receives if receive is not work]
                work.end(TimeoutError())

    def _lose(self, peer: Peer) -> None:
        """The other rank has closed its connection: what waits for it has failed."""
        works = peer.works()
        peer.forget()
        self.offers = [offer for offer in self.offers if offer[0] is not peer]
        was_last = all(other.has_gone for other in self.peers.values())
        sources = (peer.rank, None) if was_last else (peer.rank,)
        works += [receive for receive in self.receives if receive.peer in sources]
        self._fail(works, peer.rank)

    def _fail(self, works: Iterable[ByHandWork], rank: int) -> None:
        self.receives = [receive for receive in self.receives if receive not in works]
        for work in works:
            work.end(LostPeer(rank))
