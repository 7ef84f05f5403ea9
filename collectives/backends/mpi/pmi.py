"""What mpiexec is to MPICH's ranks, for ranks that we start ourselves: PMI-1, the words in which they ask who and where they are.

Every rank has one end of a socket pair, and asks in lines of `key=value` words (MPICH, "PMI-1 wire protocol"). Thus an MPI world
needs no mpiexec, whose control port listens on all addresses, and its ranks are forks of our server like those of any other.
"""

import contextlib
import os
import selectors
import socket
import threading
import uuid


class Manager:
    """Answers the ranks of one world, in a thread of its own, until it is closed or all have left."""

    def __init__(self, world_size: int):
        self.world_size = world_size
        self.name = f"collectives-{uuid.uuid4().hex}"
        self.table = {
            "PMI_process_mapping": f"(vector,(0,1,{world_size}))"
        }  # from node 0, one node, this many ranks on it
        self.waiting: list[socket.socket] = []
        pairs = [socket.socketpair() for _ in range(world_size)]
        self.ours, self.theirs = ([pair[end] for pair in pairs] for end in (0, 1))
        self.thread = threading.Thread(target=self._serve, name="collectives-pmi", daemon=True)
        self.thread.start()

    def environment(self, rank: int) -> dict[str, str]:
        """What a rank must know beside PMI_FD, the number that its socket has there."""
        return {"PMI_RANK": str(rank), "PMI_SIZE": str(self.world_size)}

    def close(self) -> None:
        for end in self.ours:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.thread.join()
        for end in self.ours + self.theirs:
            end.close()
        with contextlib.suppress(
            OSError
        ):  # still there if a rank came to its end before all had opened it
            os.unlink(_segment(self.name))

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            for end in self.ours:
                selector.register(end, selectors.EVENT_READ, bytearray())
            while selector.get_map():
                for key, _ in selector.select():
                    unread, end = key.data, key.fileobj
                    try:
                        piece = end.recv(65536)
                        unread += piece
                        while b"\n" in unread:
                            line, _, rest = unread.partition(b"\n")
                            unread[:] = rest
                            self._answer(
                                end, dict(word.split("=", 1) for word in line.decode().split())
                            )
                    except OSError:  # the rank is gone
                        piece = b""
                    if not piece:
                        selector.unregister(end)

    def _answer(self, end: socket.socket, asked: dict[str, str]) -> None:
        command = asked["cmd"]
        if command == "barrier_in":
            self.waiting.append(end)
            if len(self.waiting) == self.world_size:
                for one in self.waiting:
                    _say(one, "barrier_out")
                self.waiting.clear()
        elif command == "put":
            self.table[asked["key"]] = asked["value"]
            _say(end, "put_result")
        elif command == "get":
            value = self.table.get(asked["key"])
            _say(end, "get_result", **{"rc": -1} if value is None else {"value": value})
        elif command == "get_my_kvsname":
            _say(end, "my_kvsname", kvsname=self.name)
        elif command in _ANSWERS:
            _say(end, *_ANSWERS[command])
        else:
            _say(end, command, rc=-1)


_ANSWERS = {
    "init": ("response_to_init", "pmi_version=1", "pmi_subversion=1"),
    "get_maxes": ("maxes", "kvsname_max=256", "keylen_max=64", "vallen_max=4096"),
    "get_appnum": ("appnum", "appnum=0"),
    "get_universe_size": ("universe_size", "size=-1"),
    "finalize": ("finalize_ack",),
}


def _say(end: socket.socket, command: str, *words: str, rc: int = 0, **more: str) -> None:
    text = " ".join(
        [f"cmd={command}", f"rc={rc}", *words, *(f"{key}={value}" for key, value in more.items())]
    )
    end.sendall(text.encode() + b"\n")


def _segment(name: str) -> str:
    """The file of the memory that MPICH's ranks of one machine share: named after the world, by its 32-bit FNV-1a hash.

    The ranks remove it when all have opened it (see mpi_store).
    """
    hashed = 0x811C9DC5
    for byte in name.encode():
        hashed = ((hashed ^ byte) * 0x01000193) % 2**32
    return f"/dev/shm/mpich_shm_{hashed:x}_0"
