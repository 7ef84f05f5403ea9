"""The logs of one job: there may be one of all ranks, or one of each."""

import re
from dataclasses import dataclass, field

from collectives.diagnosis.log import endings, lines, messages, tracebacks
from collectives.diagnosis.log.endings import Endings
from collectives.diagnosis.log.lines import Line, Stream
from collectives.diagnosis.log.messages import LogMessage, Sighting
from collectives.diagnosis.log.tracebacks import Tracebacks
from collectives.diagnosis.log.watchdog import Watchdog

_WATCHDOG = [b"WorkNCCL(", b"last enqueued", b"Last enqueued", b"last completed"]
# After so many lines no further tracebacks are looked for, and of the watchdog no further lines.
_MOST_LINES = 20_000
_BEGINNINGS = {
    b"\x1f\x8b": "is compressed: `zcat FILE | collectives diagnose --log -` reads it",
    b"PK\x03\x04": "is a zip file: unpack it first",
    b"\x28\xb5\x2f\xfd": "is compressed: `zstdcat FILE | collectives diagnose --log -` reads it",
    b"\xff\xfe": "is UTF-16: `iconv -f UTF-16 FILE | collectives diagnose --log -` reads it",
    b"\xfe\xff": "is UTF-16: `iconv -f UTF-16 FILE | collectives diagnose --log -` reads it",
}


@dataclass
class Logs:
    """What the logs show.

    `sightings`: by the name of the message. `names`: of the logs. `strange`: by name of a log, why
    it is no text. `tasks`: Slurm's numbers and ranks, where one line has both.
    """

    sightings: dict[str, Sighting] = field(default_factory=dict)
    watchdog: Watchdog = field(default_factory=Watchdog)
    tracebacks: Tracebacks = field(default_factory=Tracebacks)
    endings: Endings = field(default_factory=Endings)
    names: list[str] = field(default_factory=list)
    strange: dict[str, str] = field(default_factory=dict)
    last_lines: dict[str, str] = field(default_factory=dict)
    tasks: set[tuple[int, int]] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    recorded: int = 0

    def read(self, name: str, stream: Stream) -> None:
        """To the end."""
        self.names.append(name)
        checked = _Checked(stream)
        for line in lines.interesting(name, checked, self._needles, self._goes_on):
            self._note(line)
        self.tracebacks.end()
        self.endings.end()
        self.last_lines[name] = checked.last_line
        if checked.strange:
            self.strange[name] = checked.strange

    def _needles(self) -> list[bytes]:
        full = {name for name, one in self.sightings.items() if one.count >= messages.MOST}
        of_messages = [
            needle
            for needle, ones in messages.by_needle().items()
            if any(message.name not in full for message, *_ in ones)
        ]
        others = [] if self.recorded > _MOST_LINES else [*tracebacks.NEEDLES, *endings.NEEDLES]
        watchdog = [] if self.watchdog.is_full else _WATCHDOG
        return list(dict.fromkeys([*of_messages, *others, *watchdog]))

    def _goes_on(self) -> bool:
        is_full = self.recorded > _MOST_LINES
        return not is_full and (self.tracebacks.goes_on() or self.endings.goes_on())

    def _note(self, line: Line) -> None:
        self.recorded += 1
        self.tracebacks.read(line)
        self.endings.read(line)
        if not line.needles:
            return
        rank = line.writer.rank
        number = lines.rank_in(line.raw) if rank is None and line.task is not None else rank
        if line.task is not None and number is not None:
            self.tasks.add((line.task, number))
        if rank is not None:
            self.ranks.add(rank)
        if not line.needles.isdisjoint(_WATCHDOG) and any(
            self.watchdog.note(text, rank) for text in line.joined
        ):
            self.watchdog.first = self.watchdog.first or (line.log, line.number)
        known = [needle for needle in line.needles if needle in messages.by_needle()]
        if known and (sighted := messages.read(line, known)):
            self._see(line, *sighted)

    def _see(self, line: Line, message: LogMessage, match: re.Match[str], wording: str) -> None:
        if message.name not in self.sightings:
            self.sightings[message.name] = Sighting(message, wording, line.log, line.number)
        rank, local = messages.ranks_of(line.writer, match)
        self.sightings[message.name].note(line, rank, local)

    @property
    def tasks_are_ranks(self) -> bool:
        """Whether the labels of Slurm are the ranks: one line says so, and none says otherwise."""
        return bool(self.tasks) and all(task == rank for task, rank in self.tasks)

    def in_order(self) -> list[Sighting]:
        return sorted(
            self.sightings.values(), key=lambda one: (self.names.index(one.log), one.line)
        )


class _Checked:
    """A stream that notes what it is, and its last line."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self.strange = ""
        self._end = b""
        self._is_first = True

    def read(self, size: int) -> bytes:
        chunk = self._stream.read(size)
        if self._is_first:
            self._is_first = False
            self.strange = _strange(chunk)
        if chunk:
            self._end = (self._end + chunk[-2000:])[-2000:]
        return chunk

    @property
    def last_line(self) -> str:
        text = self._end.decode(errors="replace").replace("\r", "\n").rstrip()
        return text.rpartition("\n")[2][-200:].strip()


def _strange(begin: bytes) -> str:
    if not begin:
        return "is empty"
    for magic, why in _BEGINNINGS.items():
        if begin.startswith(magic):
            return why
    few = begin[:4096]
    odd = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 for byte in few)
    return "is no text" if odd > len(few) / 20 else ""
