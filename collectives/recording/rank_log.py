"""The log of one rank: which rank it is, its calls, and its answers to the diagnosing parent.

An answer also tells the collectives that torch itself noted in its Flight Recorder, those from C++
(such as DDP) too.
"""

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
from typing import Any, BinaryIO

from . import call_log, launchers, stack
from .call import WORLD, requested_place
from .exit_hooks import ExitHooks, keep_stack, text_of

# How often a rank looks whether the parent has asked it something, in seconds.
_LOOK = 0.05

# So many collectives of torch's own record go into an answer: as many of these as have room.
_TOLD = (500, 250, 100, 30, 0)
# What it tells of each.
_FIELDS = ("process_group", "collective_seq_id", "profiling_name", "input_sizes")


class Log:
    """A sink that opens its file, in the folder, when it is needed: a forked child has its own."""

    tensors = spans = False
    functional = True

    def __init__(self, exits: ExitHooks, folder: Path | None = None, file: BinaryIO | None = None):
        self.exits = exits
        self.folder = folder
        self.writer: Any = None  # a call_log.Writer, as soon as there is something to note
        self.keeps_stack = False
        self.joining: int | None = None  # the number of the call that joins a world
        self.meets = ""  # where the ranks of its world meet
        self.broken = self.is_ending = self.started_by_rank = False
        self.caught = ""  # the exception that its program handled last
        self.destroyed = -1  # how many calls it had made when it destroyed its groups
        self.answering = threading.RLock()
        self.worlds = 0  # how many it has joined
        self.first_record = 0  # of the Flight Recorder, that belongs to the last of these
        if "RANK" in os.environ:
            self._open(file)

    def _open(self, file: BinaryIO | None = None, rank: int | None = None) -> call_log.Writer:
        path = self.folder and self.folder / f"{os.getpid()}-{time.monotonic_ns()}.calls"
        with file or open(path or os.devnull, "xb+") as file:
            self.meets = _meeting_place({})
            rank = _environ("RANK") if rank is None else rank
            world_size = _environ("WORLD_SIZE")
            attempt = max(_environ(launchers.ATTEMPT), 0)
            self.writer = call_log.Writer(file, rank, world_size, _number(self.meets), attempt)
        if self.folder and not self.keeps_stack:
            self.keeps_stack = keep_stack(self.folder / f"{os.getpid()}.stack")
        # subtle: not by threading, where a program may count or join all threads that there are.
        _thread.start_new_thread(self._answer_when_asked, (self.writer,))
        if (store := _job_store()) is not None:  # the parent takes long to connect to it
            first = {"store": store, "world": 0, **newest_collectives([], 0, 0)}
            self.writer.put(call_log.ANSWER, json.dumps(first).encode())
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
        """Write where the main thread is, and what torch itself has noted."""
        with self.answering:
            count = self.writer.count
            self.caught = _handled() or self.caught
            frames = stack.stands()
            where = stack.named_or_innermost(frames)
            above = [file for file, *_ in frames[: frames.index(where) if frames else 0]]
            answer = {
                "where": where,
                "in_torch": any(f"{os.sep}torch{os.sep}" in file for file in above),
                "waits": bool(frames) and stack.waits_for_others(frames[0][0]),
                "caught": self.caught,
                "torch_does": stack.torch_does(frames),
                "count": count,
                "last": self.is_ending,
                "world": self.worlds,
                "meets": self.meets,
                "launched_as": _environ("RANK"),
                "store": _job_store(),
                "exit": self.exits.exited and self.exits.exited[1],
                "destroyed": self.destroyed == count,
            }
            records = _flight_record()
            for most in _TOLD:
                whole = answer | newest_collectives(records, self.first_record, most)
                if self.writer.put(call_log.ANSWER, json.dumps(whole).encode()):
                    break

    def last_answer(self) -> None:
        """The same when the process ends: a launcher may kill it before the parent asks again."""
        self.is_ending = True
        self.answer()

    def on_process_start(self) -> None:
        """In a new process of multiprocessing: it may become a rank, unless a rank started it."""
        if self.folder and self.writer is None and not self.started_by_rank:
            with contextlib.suppress(OSError):
                self._open()

    def reset_after_fork(self) -> None:
        """In a forked child: what is in the file is the parent's."""
        self.started_by_rank |= self.writer is not None and self.writer.place()[0] >= 0
        self.writer = self.joining = None
        self.answering = threading.RLock()  # another thread of the parent may hold the old one
        if self.keeps_stack:
            faulthandler.disable()
            self.keeps_stack = False

    def enter(self, seq, torch_seq, of, what, given):
        if self.broken:
            return -1
        try:
            writer = self.writer or self._open()
            if what.name == "init_process_group":
                writer = self._assign_rank(given)
                self.joining = writer.count
            self.exits.exited = None  # the program caught it and goes on
            if what.name != "destroy_process_group":
                self.caught = ""
            number = writer.enter(seq, torch_seq, of, what, given)
            if what.name == "destroy_process_group" and what.group == WORLD:
                self.destroyed = writer.count
                with contextlib.suppress(Exception):
                    self.answer()  # its launcher may end it before it comes to its end
            return number
        except Exception as error:  # no room for a log, say: the program goes on unwatched
            self.broken = True
            write_error(self.folder, error)
            return -1

    def _assign_rank(self, given: dict) -> call_log.Writer:
        """Become the rank that init_process_group is given; a different one has a new log."""
        (rank, size), before = requested_place(given), self.writer.place()
        changed = any(old not in (-1, new) for old, new in zip(before, (rank, size), strict=True))
        moves = before[0] >= 0 and changed
        if moves and self.folder:
            if self.writer.count:
                self.writer.set_ended()
            else:
                self.writer.set_moved()
            self._open(rank=-1)
        self.meets = _meeting_place(given)
        if rank >= 0:
            stays = before[0] >= 0 and not moves
            world = self.writer.world() if stays else _number(self.meets)
            self.writer.set_place(rank, size, world)
        return self.writer

    def leave(self, number, error, source):
        if self.broken:
            return
        if self.joining == number and error is None:
            self._joined()
        self.writer.leave(number, error, source)

    def _joined(self) -> None:
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        self.writer.set_place(c10d.get_rank(), c10d.get_world_size(), self.writer.world())
        self.worlds += 1
        if c10d.get_world_size() > int(os.environ.get("LOCAL_WORLD_SIZE") or 1):
            self.answer()  # which store the job has
        if self.worlds > 1:
            with contextlib.suppress(Exception), self.answering:
                numbers = (record["record_id"] for record in _flight_record())
                self.first_record = max(numbers, default=-1) + 1

    def done(self, number, given):
        pass

    def notice(self, kind, what, at):
        if self.writer is not None:
            self.writer.notice(kind, what, at)


def write_error(folder: Path | None, error: Exception) -> None:
    """Note why this process is not watched."""
    if folder is None:
        return
    with contextlib.suppress(Exception):
        (folder / f"{os.getpid()}.unwatched").write_text(f"{type(error).__name__}: {error}")


def _handled() -> str:
    """The exception that the main thread handles just now, and the program's line that met it.

    One that a library raises and handles itself is none: an import of torch handles dozens.
    """
    found: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)
    error = found[1] if isinstance(found, tuple) else found  # a tuple before Python 3.12
    if error is None or isinstance(error, SystemExit):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not stack.is_library(frame.filename)]
    if not own:
        return ""
    text = " ".join(f"{type(error).__name__}: {text_of(error)}".split())[:200]
    return f"{text} ({os.path.basename(own[-1].filename)}:{own[-1].lineno})"


def _environ(name: str) -> int:
    return int(os.environ.get(name) or -1)


def _number(meets: str) -> int:
    return zlib.crc32(meets.encode())


def _meeting_place(given: dict) -> str:
    """Host and port, or a file, from the arguments of init_process_group and the environment."""
    method = given.get("init_method")
    store = _innermost(given.get("store"))
    if (path := getattr(store, "path", None)) or hasattr(store, "port"):
        return str(path or f"port {store.port}")
    if method not in (None, "env://"):
        return str(method).partition("://")[2]
    if "MASTER_PORT" in os.environ:
        return f"{os.environ.get('MASTER_ADDR')}:{os.environ['MASTER_PORT']}"
    return f"children of {os.getppid()}"


def _job_store() -> tuple[str, int] | None:
    """Host and port of the job's store; None if all ranks are said to be on this machine."""
    if os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE"):
        return None
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d and c10d.is_initialized():
        store = _innermost(c10d._get_default_store())
        return (store.host, store.port) if hasattr(store, "port") else None
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return (host, int(port)) if host and port else None


def _innermost(store):
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _flight_record() -> list[dict]:
    """The latest collectives and messages, oldest first, as far as torch still has them."""
    import pickle

    import torch
    from torch._C import _distributed_c10d

    with _without_compiler(torch):
        return pickle.loads(_distributed_c10d._dump_fr_trace())["entries"]  # type: ignore[attr-defined]


def newest_collectives(records: list[dict], first: int, most: int) -> dict:
    """What a rank tells of these records, from number `first` on.

    `collectives`: the newest, at most so many. `counts`: of each group, how many collectives it has
    had. `lost`: of a group that is in neither, nothing is known.
    """
    records = [record for record in records if record["record_id"] >= first]
    collectives = [record for record in records if not record["is_p2p"]]
    counts = {record["process_group"]: record["collective_seq_id"] for record in collectives}
    return {
        "collectives": [_as_list(record) for record in collectives[-most:]] if most else [],
        "counts": list(counts.items()) if most else [],
        "lost": not most or (bool(records) and records[0]["record_id"] > first),
    }


def _as_list(record: dict) -> list:
    """As rules/flight_record.py reads it; the last are the frame to name and what torch does."""
    import torch

    frames = [(frame["filename"], frame["line"], frame["name"]) for frame in record["frames"]]
    dtypes = [
        str(getattr(torch, name.lower(), name)).removeprefix("torch.")  # "Long": "int64"
        for name in record["input_dtypes"]
    ]
    return [
        *(record[field] for field in _FIELDS),
        dtypes,
        record["retired"],
        stack.named_or_innermost(frames),
        stack.torch_does(frames),
    ]


@contextlib.contextmanager
def _without_compiler(torch) -> Iterator[None]:
    """Keep torch from importing its compiler to name frames, which takes seconds.

    One thread at a time. subtle: other threads, which may be importing the compiler just now, find
    it as always.
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
