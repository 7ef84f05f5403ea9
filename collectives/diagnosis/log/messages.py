"""Search the logs of a job, of any length, for the messages that `messages.toml` explains."""

import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from collectives.diagnosis.log.watchdog import Watchdog

_ANYTHING = "..."

_CHUNK = 2**20
# A line that is longer is cut: a progress bar may write one without an end.
_LONGEST = 2**16
# So far from a message, at most, stands the rest of what is read of its line.
_NEAR = 2000

_COLOUR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
# Who wrote a line: torch puts [rank3] before it, and C++ writes [Rank 3] into it, which may be the
# rank in a group. torchrun's own prefix and its messages know the rank on the machine alone.
_RANKS = (re.compile(rb"\[rank(\d{1,6})\]"), re.compile(rb"\[[^][]*\bRank (\d{1,6})\]"))
_LOCAL_RANK = re.compile(rb"(?:\[default|\blocal_rank: )(\d{1,6})\b")


@dataclass(frozen=True)
class Message:
    """A line of logs, and what it means. See messages.toml for the fields."""

    name: str
    message: str
    means: str
    rank: str
    cure: str
    lesson: str
    program: str = ""
    ranks: int = 2
    env: dict[str, str] = field(default_factory=dict)
    torchrun: bool = False
    source: str = ""

    @property
    def parts(self) -> list[bytes]:
        """What stands in a log as it is."""
        return [part.encode() for part in self.message.split(_ANYTHING) if part]

    @functools.cached_property
    def pattern(self) -> re.Pattern[bytes]:
        first, *others = map(re.escape, self.parts)
        # subtle: atomic, because a line made for it would keep a pattern busy that goes back.
        return re.compile(
            first + b"".join(rb"(?>[^\n]{0,500}?%b)" % part for part in others), re.IGNORECASE
        )


@functools.cache
def table() -> tuple[Message, ...]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(Message(name, **fields) for name, fields in tomllib.loads(text).items())


@dataclass
class Sighting:
    """A message in logs: how many lines have it, the place of the first, and who wrote them."""

    message: Message
    log: str
    line: int
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    local_ranks: set[int] = field(default_factory=set)


@dataclass
class Logs:
    """What the logs of one job show: there may be one of all ranks, or one of each.

    `sightings`: by the name of the message. `names`: of the logs.
    """

    sightings: dict[str, Sighting] = field(default_factory=dict)
    watchdog: Watchdog = field(default_factory=Watchdog)
    names: list[str] = field(default_factory=list)

    def read(self, name: str, stream: BinaryIO) -> None:
        """To the end. At any time little more than a chunk is in memory."""
        self.names.append(name)
        number = 1
        for text in _pieces(stream):
            for message in table():
                for match in _matches(text, message):
                    if message.name not in self.sightings:
                        line = number + text.count(b"\n", 0, match.start())
                        self.sightings[message.name] = Sighting(message, name, line)
                    rank = _note(self.sightings[message.name], _before(match))
                    rest = match.string[match.end() : match.end() + _NEAR].partition(b"\n")[0]
                    self.watchdog.note((_before(match) + rest).decode(errors="replace"), rank)
            number += text.count(b"\n")

    def in_order(self) -> list[Sighting]:
        return sorted(
            self.sightings.values(), key=lambda one: (self.names.index(one.log), one.line)
        )


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """Some lines at a time, without colours."""
    rest = b""
    while chunk := stream.read(_CHUNK):
        text, newline, rest = (rest + chunk).rpartition(b"\n")
        if len(rest) > _LONGEST:
            text, newline, rest = text + newline + rest, b"", b""
        yield _COLOUR.sub(b"", text + newline)
    yield _COLOUR.sub(b"", rest)


def _matches(text: bytes, message: Message) -> Iterator[re.Match[bytes]]:
    """The message in each line that has it."""
    rarest, end = max(message.parts, key=len), 0
    while (at := text.find(rarest, end)) >= 0:
        begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
        if end < 0:
            end = len(text)
        if match := message.pattern.search(text, begin, end):
            yield match


def _before(match: re.Match[bytes]) -> bytes:
    """The line up to the end of the message."""
    text = match.string[max(0, match.start() - _NEAR) : match.end()]
    return text.rpartition(b"\n")[2]


def _note(sighting: Sighting, line: bytes) -> int | None:
    """Count a line, and return the rank that wrote it, where it tells."""
    sighting.count += 1
    for pattern in _RANKS:
        if ranks := pattern.findall(line):
            sighting.ranks.add(int(ranks[-1]))
            return int(ranks[-1])
    if ranks := _LOCAL_RANK.findall(line):
        sighting.local_ranks.add(int(ranks[-1]))
    return None
