"""The file in which a process notes its calls. It survives however the process ends.

A header, then a ring of slots, one for each call: call number n lies in slot n % SLOTS until call
n + SLOTS takes its place, so a reader has that long to see it. A slot is small, because writing it
is most of what a call costs: what a call asks for is mostly the same as before, and is written once
into a ring of texts. Behind these lie single texts: the last answer of the process, what ended it,
and what it noticed. Nothing here needs torch.
"""

import contextlib
import dataclasses
import functools
import json
import mmap
import os
import struct
import time
from collections.abc import Iterator
from typing import BinaryIO

from .call import Call, CallArgs, RiskyCall, as_tuples, call_from_json

SLOTS = 4096
_HEADER = 4096

# The header: `rank` is -1 as long as it is not known. `count`: how many calls were entered.
# `began`, `ended`: when the process began, and when it ended by itself. `asked`: the number of the
# reader's last question. `world`: the same number in all ranks of one world. `written`: how much
# was ever written into the ring of texts. `first`, `past`: the calls of a launch's function begin
# with the one and end before the other; -1 if it has not come there. `attempt`: of an elastic job,
# 0 for the first.
_MAGIC = b"calls  4"
_NAMES = [
    *("pid", "parent", "rank", "world_size", "count"),
    *("began", "ended", "asked", "world", "written", "first", "past", "attempt"),
]
# Where some of them lie, in words of 8 bytes.
_RANK, _SIZE, _COUNT, _ENDED, _ASKED, _WORLD, _WRITTEN, _FIRST, _PAST = 3, 4, 5, 7, 8, 9, 10, 11, 12

# Instead of a rank: the process joins a world as another one than its launcher said, and notes that
# in another file.
MOVED = -2

# A slot: number, seq, torch's seq, of, entered, left, source, and how much had been written before
# its text and its error. -1 stands for None; `number` is written last.
_ENTRY = struct.Struct("<q q q q q q q q q")
_AFTER_NUMBER = struct.Struct("<q q q q q q q q")
_LEFT, _SOURCE, _ERROR = 5, 6, 8
_TEXTS = _HEADER + SLOTS * _ENTRY.size
_RING = 2**22
_LENGTH = struct.Struct("<H")
_LONGEST = 2**16 - 1
# Where the single texts lie: the answer to the reader's last question, the exception that ended the
# process, and its hints.
ANSWER = _TEXTS + _RING
RAISED = ANSWER + 2**18
HINTS = RAISED + 2**13
SIZE = HINTS + 2**16
# So many things are noticed, each once.
_NOTICED = 48

# An open call is reported once it is this old, in nanoseconds, so that a refused call is seen
# together with its error.
_YOUNG = 100_000_000
_SIZES = {ANSWER: RAISED - ANSWER, RAISED: HINTS - RAISED, HINTS: SIZE - HINTS}


def reserve(file: BinaryIO) -> None:
    """Give the file its size. Raises OSError if there is no room for it.

    subtle: to write into a hole of a file ends the process (SIGBUS) if the disk is full.
    """
    file.truncate(SIZE)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, SIZE)


class Writer:
    """Notes the calls of this process, as a `sink.Sink`.

    subtle: numbers go through `words`. Whoever reads meanwhile sees the old one or the new.
    pack_into writes zeros first, so a slot has no number while it is filled.
    """

    tensors = spans = False
    functional = True

    def __init__(
        self, file: BinaryIO, rank: int, world_size: int, world: int = 0, attempt: int = 0
    ):
        reserve(file)
        self.memory = mmap.mmap(file.fileno(), SIZE)
        self.words = memoryview(self.memory).cast("q")
        self.count = self.written = 0
        self.texts: dict[CallArgs, int] = {}
        self.noticed: dict[tuple, list] = {}
        who = os.getpid(), os.getppid(), rank, world_size
        head = *who, 0, time.monotonic_ns(), 0, 0, world, 0, -1, -1, attempt
        for place, value in enumerate(head, 1):
            self.words[place] = value
        self.memory[: len(_MAGIC)] = _MAGIC  # last: whoever sees it sees the rest

    def set_place(self, rank: int, world_size: int, world: int) -> None:
        self.words[_WORLD], self.words[_SIZE], self.words[_RANK] = world, world_size, rank

    def place(self) -> tuple[int, int]:
        """The rank and the world size; -1 while they are not known."""
        return self.words[_RANK], self.words[_SIZE]

    def world(self) -> int:
        return self.words[_WORLD]

    def set_moved(self) -> None:
        self.words[_RANK] = MOVED

    def set_ended(self) -> None:
        self.words[_ENDED] = time.monotonic_ns()

    def begin_function(self) -> None:
        """The function of a launch is called now: the calls before are the launcher's."""
        self.words[_FIRST] = self.count

    def end_function(self) -> None:
        self.words[_PAST] = self.count

    def asked(self) -> int:
        return self.words[_ASKED]

    def put(self, place: int, text: bytes) -> bool:
        """All or nothing: the length comes last. False for a text that is too long."""
        if len(text) > _SIZES[place] - 8:
            return False
        self.words[place // 8] = 0
        self.memory[place + 8 : place + 8 + len(text)] = text
        self.words[place // 8] = len(text)
        return True

    def enter(
        self,
        seq: int | None,
        torch_seq: int | None,
        of: int | None,
        what: CallArgs,
        given: dict,
    ) -> int:
        text = self.texts.get(what)
        if text is None:
            text = self.texts[what] = self._write(_encoded(what))
        number, self.count = self.count, self.count + 1
        place = _place(number)
        seq, of = -1 if seq is None else seq, -1 if of is None else of
        torch_seq = -1 if torch_seq is None else torch_seq
        self.words[place] = -1
        now = time.monotonic_ns()
        _AFTER_NUMBER.pack_into(
            self.memory, 8 * place + 8, seq, torch_seq, of, now, -1, -1, text, -1
        )
        self.words[place] = number
        # That of all threads: one that was slow takes nothing back.
        self.words[_COUNT] = self.count
        return number

    def leave(self, number: int, error: str | None, source: int | None) -> None:
        if self.count - number > SLOTS:  # its slot is another's by now
            return
        place = _place(number)
        if error is not None:
            self.words[place + _ERROR] = self._write(error.encode()[:160])
        if source is not None:
            self.words[place + _SOURCE] = source
        self.words[place + _LEFT] = time.monotonic_ns()

    def done(self, number: int, given: dict) -> None:
        pass

    def notice(self, kind: str, what: CallArgs, at: tuple[str, int, str] | None) -> None:
        key = kind, what, at
        if key not in self.noticed and len(self.noticed) < _NOTICED:
            self.noticed[key] = [kind, list(vars(what).values()), at]
            self.put(HINTS, json.dumps(list(self.noticed.values())).encode())

    def _write(self, text: bytes) -> int:
        """Into the ring, in one piece; return where it lies."""
        size = _LENGTH.size + len(text)
        begin = self.written
        if begin % _RING + size > _RING:
            begin = -(-begin // _RING) * _RING
        # A new round: what was written first is overwritten soon, even if it is used again and
        # again.
        if begin // _RING != self.written // _RING:
            self.texts.clear()
        self.written = begin + size
        self.words[_WRITTEN] = self.written  # first: from now on what lay there cannot be read
        place = _TEXTS + begin % _RING
        _LENGTH.pack_into(self.memory, place, len(text))
        self.memory[place + _LENGTH.size : place + size] = text
        return begin


class LogReader:
    """Reads such a file, also while it is written.

    `lost`: how many calls, or ends of calls, it missed; all of them are before call `since`.
    """

    def __init__(self, file: BinaryIO):
        """ValueError for a file whose writer is not done with the beginning."""
        self.memory = mmap.mmap(file.fileno(), SIZE)
        self.words = memoryview(self.memory).cast("q")
        self.next = self.lost = self.since = 0
        # Calls that are counted, and that are told later: just entered, or not yet written by their
        # thread.
        self.late: list[int] = []
        self.open: dict[int, Call] = {}

    def close(self) -> None:
        self.words.release()
        self.memory.close()

    def head(self) -> dict | None:
        """None for a file that is not one of ours, or not ready yet."""
        if self.memory[: len(_MAGIC)] != _MAGIC:
            return None
        return dict(zip(_NAMES, self.words[1 : 1 + len(_NAMES)], strict=True))

    def pid(self) -> int:
        """The process that writes it."""
        return self.words[1]

    def text(self, place: int) -> bytes:
        """Empty if there is none, or if it is just being written."""
        length = self.words[place // 8]
        text = self.memory[place + 8 : place + 8 + length]
        return text if self.words[place // 8] == length else b""

    def ask(self, question: int) -> None:
        """Have the process answer where it stands."""
        self.words[_ASKED] = question

    def poll(self, has_ended: bool = False) -> Iterator[Call]:
        """The calls that were entered or left since the last time, in order; each once or twice.

        A call that was just entered is held back. `has_ended`: the process writes no more, and
        nothing is held back.
        """
        newest = time.monotonic_ns() - (0 if has_ended else _YOUNG)
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
            if call is None and self.words[_place(number)] < number:
                self.late.append(number)
            elif call is None:  # overwritten while we looked elsewhere
                self._lose(1, number + 1)
                if before is not None:
                    del self.open[number]
                    yield dataclasses.replace(before, left=time.monotonic_ns())
            elif call.left is not None:
                self.open.pop(number, None)
                yield call
            elif before is None and call.entered > newest:
                self.late.append(number)
            elif before is None:
                self.open[number] = call
                yield call

    def function_calls(self, rank: int) -> list[Call]:
        """What the function of a launch called in this rank, whose process has ended.

        They are numbered from 0 on, and an open call is told once.
        """
        head = self.head()
        if head is None or head["first"] < 0:
            return []
        first, past = head["first"], head["past"] if head["past"] >= 0 else head["count"]
        calls = {call.number: call for call in self.poll(has_ended=True)}
        return [
            dataclasses.replace(
                call, rank=rank, number=number - first, of=call.of and call.of - first
            )
            for number, call in calls.items()
            if first <= number < past
        ]

    def _lose(self, count: int, since: int) -> None:
        self.lost += count
        self.since = max(self.since, since)

    def noticed(self) -> list[RiskyCall]:
        """What the process noticed so far."""
        with contextlib.suppress(ValueError):  # it is just being written
            head, noticed = self.head(), json.loads(self.text(HINTS))
            rank = head["rank"] if head else -1
            return [
                RiskyCall(kind, dataclasses.replace(call_from_json(what), rank=rank), as_tuples(at))
                for kind, what, at in noticed
            ]
        return []

    def _read(self, number: int, rank: int) -> Call | None:
        place = 8 * _place(number)
        slot = self.memory[place : place + _ENTRY.size]
        stored, seq, torch_seq, of, entered, left, source, text, error = _ENTRY.unpack(slot)
        if stored != number or self.memory[place : place + 8] != slot[:8]:
            return None
        text, error = self._written(text), b"" if error == -1 else self._written(error)
        if text is None or error is None:
            return None
        error = error.decode(errors="replace") or None
        seq, torch_seq, of, left, source = (
            None if value == -1 else value for value in (seq, torch_seq, of, left, source)
        )
        recorded: dict = {"seq": seq, "torch_seq": torch_seq, "of": of}
        recorded |= {"source": source, "error": error}
        times: dict = {"entered": entered, "left": left}
        return Call(**vars(_decoded(text)) | {"rank": rank, "number": number} | recorded | times)

    def _written(self, begin: int) -> bytes | None:
        """A text of the ring; None if it is no longer there."""
        place = _TEXTS + begin % _RING
        (length,) = _LENGTH.unpack_from(self.memory, place)
        text = self.memory[place + _LENGTH.size : place + _LENGTH.size + length]
        return text if self.words[_WRITTEN] <= begin + _RING else None


def _place(number: int) -> int:
    """Of the call's slot, in words of 8 bytes."""
    return (_HEADER + number % SLOTS * _ENTRY.size) // 8


def _encoded(what: CallArgs) -> bytes:
    text = json.dumps(list(vars(what).values())).encode()
    # Only a call that names thousands of ranks is too long.
    return text if len(text) <= _LONGEST else _encoded(CallArgs(what.name[:40], what.group[:100]))


@functools.lru_cache(4096)
def _decoded(text: bytes) -> Call:
    return call_from_json(json.loads(text))
