"""The log of one rank: which process it is, where its calls are written, and what it answers when the diagnosing parent asks."""

import _thread
import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from collectives.recording import call_log, exit_hooks
from collectives.recording.call import WORLD, requested_place

# So often a rank looks whether the parent has asked it something, in seconds.
_LOOK = 0.05

# So many of the Flight Recorder's records are told.
_TOLD = 500


class Log:
    """A sink that opens its file, in the folder, when it is needed: a child that was forked gets one of its own."""

    tensors = False

    def __init__(self, folder: Path | None = None, file: BinaryIO | None = None):
        self.folder = folder
        self.writer: call_log.Writer | None = None
        self.keeps_stack = False
        self.joining: int | None = None
        self.meets = ""  # where it meets the other ranks
        self.broken = self.ending = self.is_below_a_rank = False
        self.destroyed = -1  # how many calls it had made when it ended its groups
        self.answering = threading.RLock()
        self.worlds = self.first = (
            0  # how many worlds it has joined, and the Flight Recorder's first record of the last one
        )
        if "RANK" in os.environ:
            self._open(file)

    def _open(self, file: BinaryIO | None = None, rank: int | None = None) -> call_log.Writer:
        with file or open(
            self.folder / f"{os.getpid()}-{time.monotonic_ns()}.calls", "xb+"
        ) as file:
            self.meets = meeting_place({})
            self.writer = call_log.Writer(
                file,
                _environ("RANK") if rank is None else rank,
                _environ("WORLD_SIZE"),
                _number(self.meets),
            )
        if self.folder and not self.keeps_stack:
            self.keeps_stack = exit_hooks.keep_stack(self.folder / f"{os.getpid()}.stack")
        # subtle: not by threading, where a program may count or join all threads that there are.
        _thread.start_new_thread(self._answer_when_asked, (self.writer,))
        return self.writer

    def _answer_when_asked(self, writer: call_log.Writer) -> None:
        answered = 0
        while self.writer is writer:
            time.sleep(_LOOK)
            with contextlib.suppress(Exception):
                if (asked := writer.asked()) != answered:
                    answered = asked
                    self.answer()

    def answer(self) -> None:
        """Say where the main thread stands, and what torch itself has noted."""
        with self.answering:
            self._answer()

    def last_answer(self) -> None:
        """The same when the process ends: a launcher may kill it first, and then what it answered before is old."""
        self.ending = True
        self.answer()

    def _answer(self) -> None:
        count, frame = self.writer.count, sys._current_frames().get(threading.main_thread().ident)
        frames = (
            [[one.filename, one.lineno, one.name] for one in traceback.extract_stack(frame)][::-1]
            if frame
            else []
        )
        in_torch = (
            any(
                f"{os.sep}torch{os.sep}" in file
                for file, *_ in frames[: frames.index(exit_hooks.own(frames))]
            )
            if frames
            else False
        )
        told = {
            "where": exit_hooks.own(frames),
            "in_torch": in_torch,
            "count": count,
            "last": self.ending,
        }
        told |= {
            "world": self.worlds,
            "meets": self.meets,
            "launched_as": _environ("RANK"),
            "store": _store(),
        }
        told |= {
            "exit": exit_hooks.exited and exit_hooks.exited[1],
            "destroyed": self.destroyed == count,
        }
        told["collectives"] = [entry for record, *entry in _flight_record() if record >= self.first]
        self.writer.put(call_log.ANSWER, json.dumps(told).encode())

    def come(self) -> None:
        """In a new process of multiprocessing: if it is no worker of a rank, it may be a rank that has not said so yet."""
        if self.folder and self.writer is None and not self.is_below_a_rank:
            with contextlib.suppress(OSError):
                self._open()

    def forget(self) -> None:
        """In a forked child: what is in the file is the parent's."""
        self.is_below_a_rank |= self.writer is not None and self.writer.place()[0] >= 0
        self.writer = self.joining = None
        self.answering = (
            threading.RLock()
        )  # the parent's other threads, who may hold it, are not here
        if self.keeps_stack:
            faulthandler.disable()
            self.keeps_stack = False

    def enter(self, seq, of, what, given):
        if self.broken:
            return -1
        try:
            writer = self.writer or self._open()
            if what.name == "init_process_group":
                writer = self._sit(given)
                self.joining = writer.count
            exit_hooks.exited = None  # whoever caught it goes on
            number = writer.enter(seq, of, what, given)
            if what.name == "destroy_process_group" and what.group == WORLD:
                self.destroyed = writer.count
                with contextlib.suppress(Exception):
                    self.answer()  # others lose it now, and the launcher may end it before it comes to its end
            return number
        except (
            Exception
        ) as error:  # no room for a log, say: the program goes on, unseen from here on
            self.broken = True
            confess(self.folder, error)
            return -1

    def _sit(self, given: dict) -> call_log.Writer:
        """Take the place in a world that is about to be joined: if it is another than before, with a log of its own."""
        (rank, size), before = requested_place(given), self.writer.place()
        moves = before[0] >= 0 and any(
            old not in (-1, new) for old, new in zip(before, (rank, size), strict=True)
        )
        if moves and self.folder:
            (self.writer.set_ended if self.writer.count else self.writer.set_moved)()
            self._open(rank=-1)
        self.meets = meeting_place(given)
        if rank >= 0:
            self.writer.set_place(
                rank,
                size,
                self.writer.world() if before[0] >= 0 and not moves else _number(self.meets),
            )
        return self.writer

    def leave(self, number, error, source):
        if self.broken:
            return
        if self.joining == number and error is None:
            c10d = sys.modules["torch.distributed.distributed_c10d"]
            self.writer.set_place(c10d.get_rank(), c10d.get_world_size(), self.writer.world())
            self.worlds += 1
            if c10d.get_world_size() > int(os.environ.get("LOCAL_WORLD_SIZE") or 1):
                self.answer()  # which store the job has
            if self.worlds > 1:
                with contextlib.suppress(Exception), self.answering:
                    self.first = max((record + 1 for record, *_ in _flight_record()), default=0)
        self.writer.leave(number, error, source)

    def done(self, number, given):
        pass

    def notice(self, kind, what, at):
        if self.writer is not None:
            self.writer.notice(kind, what, at)


def confess(folder: Path, error: Exception) -> None:
    """Say why this process is not watched."""
    with contextlib.suppress(Exception):
        (folder / f"{os.getpid()}.unwatched").write_text(f"{type(error).__name__}: {error}")


def _environ(name: str) -> int:
    return int(os.environ.get(name) or -1)


def meeting_place(given: dict) -> str:
    """Where the ranks of one world meet: host and port, or a file; those of another world most often meet elsewhere."""
    store, method = given.get("store"), given.get("init_method")
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if (path := getattr(store, "path", None)) or hasattr(store, "port"):
        return str(path or f"port {store.port}")
    if method not in (None, "env://"):
        return str(method).partition("://")[2]
    if "MASTER_PORT" in os.environ:
        return f"{os.environ.get('MASTER_ADDR')}:{os.environ['MASTER_PORT']}"
    return f"children of {os.getppid()}"


def _number(meets: str) -> int:
    return zlib.crc32(meets.encode())


def _store() -> tuple[str, int] | None:
    """Host and port of the store that the job has; None where all ranks are on this machine, as far as their launcher says."""
    if os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE"):
        return None
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    if c10d.is_initialized():
        store = c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        return (store.host, store.port) if hasattr(store, "port") else None
    place = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return (place[0], int(place[1])) if all(place) else None


@contextlib.contextmanager
def _without_compiler(torch) -> Iterator[None]:
    """To name frames torch asks itself for the compiler, and would import it, for seconds: it is told that there is none. One
    thread at a time.

    subtle: other threads, which may be importing the compiler just now, find it as always.
    """
    real, here = torch.__getattr__, threading.get_ident()

    def __getattr__(name):
        if name == "_inductor" and threading.get_ident() == here:
            raise AttributeError(name)
        return real(name)

    torch.__getattr__ = __getattr__
    try:
        yield
    finally:
        torch.__getattr__ = real


def _flight_record() -> list:
    """Every collective that this process put under way, those from C++ too, as far as torch remembers."""
    import pickle

    import torch
    from torch._C import _distributed_c10d

    told = []
    with _without_compiler(torch):
        trace = _distributed_c10d._dump_fr_trace()
    for entry in pickle.loads(trace)["entries"][-_TOLD:]:
        if not entry["is_p2p"]:
            frames = [
                [frame["filename"], frame["line"], frame["name"]] for frame in entry["frames"]
            ]
            fields = (
                "process_group",
                "collective_seq_id",
                "profiling_name",
                "input_sizes",
                "input_dtypes",
                "retired",
            )
            told.append(
                [entry["record_id"], *(entry[field] for field in fields), exit_hooks.own(frames)]
            )
    return told
