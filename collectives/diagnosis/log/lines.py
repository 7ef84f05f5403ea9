"""The lines of a log that may matter, one after the other, and who wrote each."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

_CHUNK = 2**18
# So much of a log is searched for everything. After that, a piece without any of these words is
# left out: messages come together, and one of them has such a word. So 100 MB take seconds.
_SEARCHED_IN_FULL = 2**22
_WORDS = (
    *(
        b"rror",
        b"xcept",
        b"ailed",
        b"illed",
        b"imed out",
        b"losed by",
        b"signal",
        b"WARN ",
        b"annot",
    ),
    *(b"Watchdog", b"enqueued"),
)
# A line that is longer is cut: a progress bar may write one without an end.
_LONGEST = 2**16

# A viewer makes at most so many lines of one that matters.
_WRAPPED = 3
_DIGITS = b"0123456789"

_COLOUR = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_END = re.compile(rb"[\r\n]")

# What stands before the text of a line. The order matters: the first that fits is taken.
_PREFIX = re.compile(
    r"(?:\[rank(?P<rank>\d{1,6})\]:?"
    r"|\[\d+,(?P<mpi>\d{1,6})\]<std(?:err|out)>:?"  # mpirun --tag-output
    r"|\[(?!rank)[a-z]\w*?(?P<local>\d{1,4})\]:"  # torchrun --tee: a role, and the local rank
    r"|\((?P<named>[A-Za-z][\w:.]*)? ?(?:rank=(?P<worker>\d{1,6}) )?pid=(?P<pid>\d+)[^()]{0,80}\)"
    r"|(?P<task>\d{1,6}):(?= |\[)"  # srun --label
    r"|\[?(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)[.,\d]*(?:Z|[+-]\d\d:?\d\d)?"
    r"(?: (?P<part>(?:[A-Z]{2,4}\d+ ?)+))?\]?(?: std(?:out|err) [FP])?"  # SGLang; Kubernetes
    r"|\[?\d\d:\d\d:\d\d[.,\d]*\]?"
    r"|(?P<container>[\w.-]+) +\|"  # docker compose
    r"|(?P<host>(?:\d{1,3}\.){3}\d{1,3}|[a-z][a-z0-9.-]*\d):(?= )"  # pdsh
    r"|\S+ \[std(?:err|out)\]"
    r"|\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\]?(?: \d\d-\d\d \d\d:\d\d:\d\d)?"
    r"(?= |:[\w.]+:)(?::[\w.]+:)?"
    r"|\[[\w./-]+\.py:\d+(?::\w+)?\]"
    r"|\[\d+\](?= \[)) ?"
)
_TASK = re.compile(r"(\d{1,6}):(?= |\[)")
# C++ writes the rank of a group into a line, and some texts of torch speak of their rank.
_INSIDE = (
    re.compile(r"\[[^][]*\b[Rr]ank:? (\d{1,6})\]"),
    re.compile(r"\b(?:for|on) rank:? (\d{1,6})\b"),
)
_LOCAL_INSIDE = re.compile(r"(?:\blocal_rank: |--local[_-]rank=)(\d{1,6})\b")


class Stream(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes: ...


class LineWriter(NamedTuple):
    """Who wrote a line, as far as its beginning tells.

    `rank`: in the world. `local`: on its machine. `label`: another name, as in Worker pid 7 or TP3.
    """

    rank: int | None = None
    local: int | None = None
    label: str = ""


@dataclass(frozen=True)
class Line:
    """`text`: without what stands before it. `needles`: those that it holds."""

    log: str
    number: int
    raw: str
    text: str
    writer: LineWriter
    time: str = ""
    needles: frozenset[bytes] = frozenset()
    rest: tuple[bytes, int] = (b"", 0)  # a text, and where the next line begins in it

    @property
    def task(self) -> int | None:
        """Slurm's number of the task that wrote it."""
        found = _TASK.match(self.raw)
        return int(found[1]) if found else None

    @property
    def joined(self) -> Iterator[str]:
        """The line, then the ways in which it may go on, if a viewer has wrapped it."""
        yield self.raw
        lines, (text, at) = [self.raw], self.rest
        while at < len(text) and len(lines) < _WRAPPED:
            line, at = _line(text, at)
            lines.append(line)
            yield "".join(lines)
            yield " ".join(lines)


def parse(log: str, number: int, raw: str, **more) -> Line:
    names: dict[str, str] = {}
    at, time = 0, ""
    while at < len(raw) and (prefix := _PREFIX.match(raw, at)):
        groups = {name: text for name, text in prefix.groupdict().items() if text}
        if "task" in groups and names.keys() - {"container", "host"}:
            break
        time = time or groups.pop("time", "")
        names |= groups
        at = prefix.end()
    rank = _number(names, "rank", "mpi", "worker")
    local = _number(names, "local")
    pid = f"{names.get('named', '')} pid {names['pid']}".strip() if "pid" in names else ""
    label = pid or names.get("part", "").strip()
    label = label or names.get("container", "") or names.get("host", "")
    label = label or (f"task {names['task']}" if "task" in names else "")
    return Line(log, number, raw, raw[at:], LineWriter(rank, local, label), time, **more)


def _number(names: dict[str, str], *keys: str) -> int | None:
    return next((int(names[key]) for key in keys if key in names), None)


def rank_in(text: str) -> int | None:
    """The rank that a text names as its own."""
    for pattern in _INSIDE:
        if found := pattern.findall(text):
            return int(found[-1])
    return None


def local_rank_in(text: str) -> int | None:
    found = _LOCAL_INSIDE.findall(text)
    return int(found[-1]) if found else None


def interesting(
    log: str, stream: Stream, needles: Callable[[], list[bytes]], goes_on: Callable[[], bool]
) -> Iterator[Line]:
    """The lines that hold a needle, and those that follow while `goes_on()` is true.

    At any time little more than a chunk is in memory.
    """
    number, searched = 1, 0
    for text in pieces(stream):
        searched += len(text)
        wanted = needles()
        if searched > _SEARCHED_IN_FULL:
            wanted = _possible(text, wanted)
        hits: dict[int, set[bytes]] = {}
        for needle in wanted:
            at = text.find(needle)
            while at >= 0:
                begin = max(text.rfind(b"\n", 0, at), text.rfind(b"\r", 0, at)) + 1
                hits.setdefault(begin, set()).add(needle)
                at = text.find(needle, at + len(needle))
        yield from _walk(log, text, number, hits, goes_on)
        number += text.count(b"\n")


def _possible(text: bytes, needles: list[bytes]) -> list[bytes]:
    """Those that the text may hold: most of its lines differ in their numbers alone."""
    if not any(word in text for word in _WORDS):
        return []
    kinds = b"\n".join(set(text.translate(None, _DIGITS).split(b"\n")))
    return [needle for needle in needles if needle.translate(None, _DIGITS) in kinds]


def _walk(log, text, number, hits, goes_on) -> Iterator[Line]:
    counted = end = 0
    starts = iter(sorted(hits))
    begin = next(starts, None)
    while True:
        while begin is not None and begin < end:
            begin = next(starts, None)
        if goes_on() and end < len(text):
            at = end
        elif begin is not None:
            at = begin
        else:
            return
        number += text.count(b"\n", counted, at)
        counted = at
        line, end = _line(text, at)
        yield parse(log, number, line, needles=frozenset(hits.get(at, ())), rest=(text, end))


def _line(text: bytes, at: int) -> tuple[str, int]:
    """The line that begins there, and where the next one begins."""
    found = _END.search(text, at)
    stop = found.start() if found else len(text)
    return text[at : min(stop, at + _LONGEST)].decode(errors="replace"), stop + 1


def pieces(stream: Stream) -> Iterator[bytes]:
    """Some lines at a time, without colours."""
    rest = b""
    while chunk := stream.read(_CHUNK):
        text, newline, rest = (rest + chunk).rpartition(b"\n")
        if len(rest) > _LONGEST:
            text, newline, rest = text + newline + rest, b"", b""
        yield _plain(text + newline)
    yield _plain(rest)


def _plain(text: bytes) -> bytes:
    text = _COLOUR.sub(b"", text) if b"\x1b" in text else text
    return text.replace(b"\r\n", b"\n")
