"""The file in which a process notes its calls while it runs: memory that the system keeps, however the process ends.

A header, then a ring of slots, one for each call: call number n lies in slot n % SLOTS until call n + SLOTS takes its place.
Whoever reads while the process writes has that long to see a call. A slot is small, for to write it is most of what a call costs:
what a call asks for, mostly the same as before, is written once into a ring of texts. Behind these lie single texts: what the
process says of itself when it is asked, what ended it, and what it noticed. Nothing here needs torch.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

from collectives.recording.call import Call, CallArgs, RiskyCall

SLOTS = 4096
_HEADER = 4096

# pid, parent's pid, rank (-1: not known yet), world size, how many calls were entered, when the process came, when it ended of its
# own accord, the number of the last question that the reader asked, a number that the ranks of one world share, and how much was
# ever written into the ring of texts.
_HEAD = struct.Struct("<8s q q q q q q q q q q")
_MAGIC = b"calls  2"
_RANK, _COUNT, _ENDED, _ASKED, _WORLD, _WRITTEN = 24, 40, 56, 64, 72, 80

# Instead of a rank: the process joins a world as another one than its launcher said, and notes that in another file.
MOVED = -2

# number, seq, of, entered, left, source, and how much had been written before its text and its error. -1 stands for None; `number`
# is written last.
_ENTRY = struct.Struct("<q q q q q q q q")
_LEFT, _SOURCE, _ERROR = 32, 40, 56
_TEXTS = _HEADER + SLOTS * _ENTRY.size
_RING = 2**22
_LONGEST = 800
_LENGTH = struct.Struct("<H")
# Where the single texts lie: the answer to the reader's last question, the exception that ended the process, and its hints.
ANSWER = _TEXTS + _RING
RAISED = ANSWER + 2**18
HINTS = RAISED + 2**13
SIZE = HINTS + 2**16
# So many things are noticed, each once.
_NOTICED = 48
_SIZES = {ANSWER: RAISED - ANSWER, RAISED: HINTS - RAISED, HINTS: SIZE - HINTS}


class Writer:
    """Notes the calls of this process, as a `sink.Sink`.

    subtle: numbers go through `words`. Whoever reads meanwhile sees the old one or the new; pack_into writes zeros first.
    """

    tensors = False

    def __init__(self, file: BinaryIO, rank: int, world_size: int, world: int = 0):
        file.truncate(SIZE)
        if hasattr(
            os, "posix_fallocate"
        ):  # subtle: where there is no room for a hole's page, writing it ends the process (SIGBUS)
            os.posix_fallocate(file.fileno(), 0, SIZE)
        self.memory = mmap.mmap(file.fileno(), SIZE)
        self.words = memoryview(self.memory).cast("q")
        self.count = self.written = 0
        self.texts: dict[CallArgs, int] = {}
        self.noticed: dict[tuple, list] = {}
        process = os.getpid(), os.getppid(), rank, world_size
        _HEAD.pack_into(self.memory, 0, b"", *process, 0, time.monotonic_ns(), 0, 0, world, 0)
        self.memory[: len(_MAGIC)] = _MAGIC  # last: whoever sees it sees the rest

    def set_place(self, rank: int, world_size: int, world: int) -> None:
        self.words[_WORLD // 8] = world
        self.words[_RANK // 8 + 1] = world_size
        self.words[_RANK // 8] = rank

    def place(self) -> tuple[int, int]:
        """The rank and the world size; -1 while they are not known."""
        return struct.unpack_from("<q q", self.memory, _RANK)

    def world(self) -> int:
        return struct.unpack_from("<q", self.memory, _WORLD)[0]

    def set_moved(self) -> None:
        self.words[_RANK // 8] = MOVED

    def set_ended(self) -> None:
        self.words[_ENDED // 8] = time.monotonic_ns()

    def asked(self) -> int:
        return struct.unpack_from("<q", self.memory, _ASKED)[0]

    def put(self, place: int, text: bytes) -> None:
        """All or nothing: the length comes last. A text that is too long is left out."""
        if len(text) <= _SIZES[place] - 8:
            self.words[place // 8] = 0
            self.memory[place + 8 : place + 8 + len(text)] = text
            self.words[place // 8] = len(text)

    def enter(self, seq: int | None, of: int | None, what: CallArgs, given: dict) -> int:
        text = self.texts.get(what)
        if text is None:
            text = self.texts[what] = self._write(_encode(what))
        number, self.count = self.count, self.count + 1
        words, place = self.words, _place(number)
        seq, of = -1 if seq is None else seq, -1 if of is None else of
        words[place // 8] = -1
        self.memory[place : place + _ENTRY.size] = _ENTRY.pack(
            -1, seq, of, time.monotonic_ns(), -1, -1, text, -1
        )
        words[place // 8] = number
        words[_COUNT // 8] = self.count  # that of all threads: one that was slow takes nothing back
        return number

    def leave(self, number: int, error: str | None, source: int | None) -> None:
        place = _place(number)
        if self.count - number > SLOTS:  # its slot is another's by now
            return
        if error is not None:
            self.words[(place + _ERROR) // 8] = self._write(error.encode()[:160])
        if source is not None:
            self.words[(place + _SOURCE) // 8] = source
        self.words[(place + _LEFT) // 8] = time.monotonic_ns()

    def done(self, number: int, given: dict) -> None:
        pass

    def notice(self, kind: str, what: CallArgs, at: tuple[str, int, str] | None) -> None:
        key = kind, what, at
        if key not in self.noticed and len(self.noticed) < _NOTICED:
            self.noticed[key] = [kind, _encode(what).decode(), at]
            self.put(HINTS, json.dumps(list(self.noticed.values())).encode())

    def _write(self, text: bytes) -> int:
        """Into the ring, in one piece; return where it lies."""
        size = _LENGTH.size + len(text)
        begin = (
            self.written
            if self.written % _RING + size <= _RING
            else -(-self.written // _RING) * _RING
        )
        if (
            begin // _RING != self.written // _RING
        ):  # what came first is overwritten soon, even if it is used again and again
            self.texts.clear()
        self.written = begin + size
        self.words[_WRITTEN // 8] = self.written  # first: from now on what lay there cannot be read
        place = _TEXTS + begin % _RING
        _LENGTH.pack_into(self.memory, place, len(text))
        self.memory[place + _LENGTH.size : place + size] = text
        return begin


class Reader:
    """Reads such a file, also while it is written. `lost`: how many calls it missed, or their ends; all before call `since`."""

    def __init__(self, file: BinaryIO):
        """ValueError for a file whose writer is not done with the beginning."""
        self.memory = mmap.mmap(file.fileno(), SIZE)
        self.words = memoryview(self.memory).cast("q")
        self.next = self.lost = self.since = 0
        self.late: list[
            int
        ] = []  # calls that are counted, and that their thread had not written yet when we looked
        self.open: dict[int, Call] = {}

    def close(self) -> None:
        self.words.release()
        self.memory.close()

    def head(self) -> dict | None:
        """None for a file that is not one of ours, or not ready yet."""
        magic, *values = _HEAD.unpack_from(self.memory, 0)
        names = (
            "pid",
            "parent",
            "rank",
            "world_size",
            "count",
            "began",
            "ended",
            "asked",
            "world",
            "written",
        )
        return dict(zip(names, values, strict=True)) if magic == _MAGIC else None

    def text(self, place: int) -> bytes:
        """Empty if there is none, or if it is just being written."""
        (length,) = struct.unpack_from("<q", self.memory, place)
        text = self.memory[place + 8 : place + 8 + length]
        return text if struct.unpack_from("<q", self.memory, place)[0] == length else b""

    def ask(self, question: int) -> None:
        """Have the process answer where it stands."""
        self.words[_ASKED // 8] = question

    def poll(self) -> Iterator[Call]:
        """The calls that were entered or left since the last time, in order of their numbers: each once or twice."""
        head = self.head()
        if head is None:
            return
        count = head["count"]
        if count - self.next > SLOTS:
            self._lose(count - SLOTS - self.next, count - SLOTS)
            self.next = count - SLOTS
        new = [*self.late, *range(self.next, count)]
        self.next, self.late = count, []
        for number in [*sorted(self.open), *new]:
            call = self._read(number, head["rank"])
            before = self.open.get(number)
            if call is None and self.words[_place(number) // 8] < number:
                self.late.append(number)
            elif call is None:  # overwritten while we looked elsewhere
                self._lose(1, number + 1)
                if self.open.pop(number, None):
                    yield dataclasses.replace(before, left=time.monotonic_ns())
            elif call.left is not None:
                self.open.pop(number, None)
                yield call
            elif before is None:
                self.open[number] = call
                yield call

    def _lose(self, count: int, since: int) -> None:
        self.lost += count
        self.since = max(self.since, since)

    def noticed(self) -> list[RiskyCall]:
        """What the process noticed so far."""
        with contextlib.suppress(ValueError):  # it is just being written
            rank, told = self.head()["rank"], json.loads(self.text(HINTS))
            return [
                RiskyCall(kind, Call(rank, -1, **vars(_decode(what.encode()))), at and tuple(at))
                for kind, what, at in told
            ]
        return []

    def _read(self, number: int, rank: int) -> Call | None:
        place = _place(number)
        slot = self.memory[place : place + _ENTRY.size]
        found, seq, of, entered, left, source, text, error = _ENTRY.unpack(slot)
        if found != number or self.memory[place : place + 8] != slot[:8]:
            return None
        text, error = self._written(text), b"" if error == -1 else self._written(error)
        if text is None or error is None:
            return None
        error = error.decode(errors="replace") or None
        seq, of, left, source = (
            None if value == -1 else value for value in (seq, of, left, source)
        )
        times = {"entered": entered, "left": left}
        return Call(
            rank=rank,
            number=number,
            seq=seq,
            of=of,
            source=source,
            error=error,
            **times,
            **vars(_decode(text)),
        )

    def _written(self, begin: int) -> bytes | None:
        """A text of the ring; None if it is no longer there."""
        place = _TEXTS + begin % _RING
        (length,) = _LENGTH.unpack_from(self.memory, place)
        text = self.memory[place + _LENGTH.size : place + _LENGTH.size + length]
        (written,) = struct.unpack_from("<q", self.memory, _WRITTEN)
        return text if written <= begin + _RING else None


def _place(number: int) -> int:
    """Of the call's slot."""
    return _HEADER + number % SLOTS * _ENTRY.size


def _encode(what: CallArgs) -> bytes:
    """As JSON in which repetitions are counted; what still is too long for a slot loses what only large worlds have."""
    for fields in (
        {},
        {"splits": None},
        {"tensors": what.tensors[:1], "ranks": None},
        {"members": (), "file": what.file[-100:]},
    ):
        what = replace(what, **fields)
        runs = replace(what, members=_ranges(what.members), tensors=_runs(what.tensors))
        text = _json(runs)
        if len(text) <= _LONGEST:
            return text
    return _json(CallArgs(what.name[:40], what.group[:100]))


def _json(what: CallArgs) -> bytes:
    return json.dumps(list(vars(what).values()), separators=(",", ":")).encode()


@functools.lru_cache(SLOTS)
def _decode(text: bytes) -> CallArgs:
    what = CallArgs(*json.loads(text))
    members = tuple(rank for begin, end in what.members for rank in range(begin, end))
    tensors = tuple(text for text, count in what.tensors for _ in range(count))
    splits = what.splits and tuple(part and tuple(part) for part in what.splits)
    return replace(
        what,
        members=members,
        tensors=tensors,
        splits=splits,
        ranks=what.ranks and tuple(map(tuple, what.ranks)),
    )


def _ranges(numbers: tuple[int, ...]) -> list[list[int]]:
    """(0, 1, 2, 5) as [[0, 3], [5, 6]]."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] += 1
        else:
            found.append([number, number + 1])
    return found


def _runs(texts: tuple[str, ...]) -> list[list]:
    """("a", "a", "b") as [["a", 2], ["b", 1]]."""
    return [[text, len(list(same))] for text, same in itertools.groupby(texts)]
