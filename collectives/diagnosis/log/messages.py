"""The messages that `messages.toml` explains, and where a log holds them."""

import functools
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from collectives.diagnosis.log.lines import Line, LineWriter, local_rank_in, rank_in

_ANYTHING = "..."
# A message is looked for until so many lines had it.
MOST = 500


@dataclass(frozen=True)
class LogMessage:
    """A line of logs, and what it means. See messages.toml for the fields."""

    name: str
    message: str
    means: str
    rank: str
    cure: str
    lesson: str
    seen: str
    kind: str = "cause"
    also: tuple[str, ...] = ()
    program: str = ""
    ranks: int = 2
    env: dict[str, str] = field(default_factory=dict)
    torchrun: bool = False
    source: str = ""

    @property
    def wordings(self) -> tuple[str, ...]:
        return (self.message, *self.also)

    @functools.cached_property
    def patterns(self) -> list[re.Pattern[str]]:
        return [_pattern(one) for one in self.wordings]

    def search(self, text: str) -> re.Match[str] | None:
        found = (pattern.search(text) for pattern in self.patterns)
        return next((match for match in found if match), None)


def _parts(wording: str) -> list[str]:
    """What stands in a log as it is."""
    return [part for part in wording.split(_ANYTHING) if part]


def _pattern(wording: str) -> re.Pattern[str]:
    first, *others = map(re.escape, _parts(wording))
    # subtle: atomic, because a line made for it would keep a pattern busy that goes back.
    rest = "".join(rf"(?>[^\n]{{0,500}}?{part})" for part in others)
    return re.compile(first + rest, re.IGNORECASE)


@functools.cache
def table() -> tuple[LogMessage, ...]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(
        LogMessage(name, **{**fields, "also": tuple(fields.get("also", ()))})
        for name, fields in tomllib.loads(text).items()
    )


@functools.cache
def by_needle() -> dict[bytes, list[tuple[LogMessage, re.Pattern[str], str]]]:
    """By what to search a log for, the messages and their wordings."""
    found: dict[bytes, list[tuple[LogMessage, re.Pattern[str], str]]] = {}
    for message in table():
        for wording in message.wordings:
            needle = max(_parts(wording), key=len).encode()
            found.setdefault(needle, []).append((message, _pattern(wording), wording))
    return found


@dataclass
class Sighting:
    """A message in logs: how many lines have it, the place of the first, and who wrote them."""

    message: LogMessage
    wording: str
    log: str
    line: int
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    local_ranks: set[int] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    logs: set[str] = field(default_factory=set)

    def note(self, line: Line, rank: int | None, local: int | None) -> None:
        self.count += 1
        self.logs.add(line.log)
        if rank is not None:
            self.ranks.add(rank)
        elif local is not None:
            self.local_ranks.add(local)
        elif line.writer.label:
            self.labels.add(line.writer.label)


def read(line: Line, known: Iterable[bytes]) -> tuple[LogMessage, re.Match[str], str] | None:
    """The message of a line, and its wording: of several, the one that says most.

    `known`: the needles in it.
    """
    for text in line.joined:
        matches = [
            (message, match, wording)
            for needle in known
            for message, pattern, wording in by_needle()[needle]
            if (match := pattern.search(text))
        ]
        if matches:
            return max(matches, key=lambda one: sum(map(len, _parts(one[2]))))
        if not line.needles:
            break
    return None


def ranks_of(writer: LineWriter, match: re.Match[str]) -> tuple[int | None, int | None]:
    """The rank and the local rank that wrote the message, where it tells."""
    if writer.rank is not None:
        return writer.rank, writer.local
    rank = rank_in(match.string[: match.end()])
    local = local_rank_in(match[0] + match.string[match.end() : match.end() + 200])
    return rank, writer.local if local is None else local
