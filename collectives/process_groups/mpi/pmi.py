"""A server for PMI-1, the protocol in which MPICH's ranks ask mpiexec about their world.

Every rank has one end of a socket pair and sends lines of `key=value` words (MPICH, "PMI-1 wire
protocol"). So an MPI world needs no mpiexec, whose control port listens on all addresses, and its
ranks are forks of our fork server like all others.
"""

import contextlib
import os
import selectors
import socket
import threading
import uuid

from collectives.recording import launchers


class Manager:
    """Answers the ranks of one world in a thread, until it is closed or all ranks have left."""

    def __init__(self, world_size: int):
        self.world_size = world_size
        self.name = f"collectives-{uuid.uuid4().hex}"
        # The mapping: from node 0 on, one node, with so many ranks.
        self.table = {"PMI_process_mapping": f"(vector,(0,1,{world_size}))"}
        self.at_barrier: list[socket.socket] = []
        pairs = [socket.socketpair() for _ in range(world_size)]
        self.own_ends, self.rank_ends = ([pair[end] for pair in pairs] for end in (0, 1))
        self.thread = threading.Thread(target=self._serve, name="collectives-pmi", daemon=True)
        self.thread.start()

    def environment(self, rank: int) -> dict[str, str]:
        """The variables of a rank, besides PMI_FD: the number of its socket in its process."""
        rank_name, size_name, *_ = launchers.MPICH
        return {rank_name: str(rank), size_name: str(self.world_size)}

    def close(self) -> None:
        for end in self.own_ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.thread.join()
        for end in self.own_ends + self.rank_ends:
            end.close()
        # The file is still there if a rank ended before all had opened it.
        with contextlib.suppress(OSError):
            os.unlink(_shared_memory(self.name))

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            for end in self.own_ends:
                selector.register(end, selectors.EVENT_READ, bytearray())
            while selector.get_map():
                for key, _ in selector.select():
                    sender = key.fileobj
                    assert isinstance(sender, socket.socket)
                    try:
                        is_open = self._serve_rank(sender, unread=key.data)
                    except OSError:  # the rank is gone
                        is_open = False
                    except (KeyError, ValueError):  # a line that is not PMI-1
                        is_open = False
                        sender.shutdown(socket.SHUT_RDWR)  # its MPI_Init fails, instead of waiting
                    if not is_open:
                        selector.unregister(sender)

    def _serve_rank(self, end: socket.socket, unread: bytearray) -> bool:
        """Read from a rank and answer each whole line; False when the rank has closed its end."""
        received = end.recv(65536)
        unread += received
        while b"\n" in unread:
            line, _, rest = unread.partition(b"\n")
            unread[:] = rest
            words = (word.partition("=") for word in line.decode().split())
            self._answer(end, {key: value for key, _, value in words})
        return bool(received)

    def _answer(self, end: socket.socket, request: dict[str, str]) -> None:
        command = request["cmd"]
        if command == "barrier_in":
            self.at_barrier.append(end)
            if len(self.at_barrier) == self.world_size:
                for rank_end in self.at_barrier:
                    _send(rank_end, "barrier_out")
                self.at_barrier.clear()
        elif command == "put":
            self.table[request["key"]] = request["value"]
            _send(end, "put_result")
        elif command == "get":
            value = self.table.get(request["key"])
            _send(end, "get_result", **{"rc": -1} if value is None else {"value": value})
        elif command == "get_my_kvsname":
            _send(end, "my_kvsname", kvsname=self.name)
        elif command in _ANSWERS:
            _send(end, *_ANSWERS[command])
        else:
            _send(end, command, rc=-1)


_ANSWERS = {
    "init": ("response_to_init", "pmi_version=1", "pmi_subversion=1"),
    "get_maxes": ("maxes", "kvsname_max=256", "keylen_max=64", "vallen_max=4096"),
    "get_appnum": ("appnum", "appnum=0"),
    "get_universe_size": ("universe_size", "size=-1"),
    "finalize": ("finalize_ack",),
}


def _send(end: socket.socket, command: str, *words: str, rc: int = 0, **more: str) -> None:
    text = " ".join(
        [f"cmd={command}", f"rc={rc}", *words, *(f"{key}={value}" for key, value in more.items())]
    )
    end.sendall(text.encode() + b"\n")


def _shared_memory(name: str) -> str:
    """The file of the memory that MPICH's ranks of one machine share.

    MPICH names it after the 32-bit FNV-1a hash of the world's name. The ranks remove it when all
    have opened it (see library.py).
    """
    hashed = 0x811C9DC5
    for byte in name.encode():
        hashed = ((hashed ^ byte) * 0x01000193) % 2**32
    return f"/dev/shm/mpich_shm_{hashed:x}_0"
