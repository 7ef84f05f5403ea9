"""The exceptions that a log shows: which process raised what, and at which line of the program."""

import re
from dataclasses import dataclass, field, replace

from collectives.diagnosis.log.lines import Line, LineWriter, rank_in

HEADER = "Traceback (most recent call last)"
NEEDLES = [
    *(HEADER.encode(), b'  File "', b"-- Process ", b"KeyboardInterrupt", b"Exception ignored"),
    *(
        b"terminated with exception: ",
        b"Error:",
        b"Error\n",
        b"Error(",
        b"Exception:",
        b"Exception\n",
    ),
]
# Of a traceback so many lines are read, and so many lines after it are looked through for the
# one that says that another traceback belongs to it.
_MOST_LINES, _AFTER = 1000, 12
_MOST = 2000

_FRAME = re.compile(r'\s*File ["“](.+?)["”], line (\d+)')
_ERROR = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
    r"(?:Error|Exception|Interrupt|Exit|Timeout|ExceptionGroup)\w{0,20}(?:\(\w+\))?)"
    r"(?:: (?P<text>.*))?$"
)
# What a thread of C++ met that watches the GPU.
_ABORTED = re.compile(r"terminated with exception: (?P<type>\w+ error): (?P<text>.*)")
# Below a header any name may be that of an exception.
_BELOW = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*|(?<=\.)\w+)(?:\(\w+\))?): ?(?P<text>.*)$"
)
_GROUP = re.compile(r"\s*(?:[|+] ?)+(?:-[-+ \d.]*$)?")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_PART = re.compile(r"(?:[A-Z]{2,4}\d+ ?)+")
_SPAWNED = re.compile(r"-- Process (\d+) terminated")
# These lie in no program of a user.
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib(?:64)?/python\d|<frozen|<string>|importlib"
)


@dataclass
class LoggedError:
    """A traceback, or its end. `errors`: of a chain, each as (type, text), the first one first.

    `at`: the innermost line of the program, as in train.py:12. `more`: what follows the message.
    """

    log: str
    line: int
    writer: LineWriter
    errors: list[tuple[str, str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    time: str = ""


@dataclass
class _Open:
    """A traceback that is being read."""

    raised: LoggedError
    frames: list[tuple[str, str]] = field(default_factory=list)
    read: int = 0
    after: int = 0
    in_group: bool = False
    is_mixed: bool = False

    @property
    def place(self) -> str:
        """Of two tracebacks that are mixed, nobody knows whose a line is."""
        own = [frame for frame in self.frames if not _LIBRARY.search(frame[0])]
        if not own or self.is_mixed:
            return ""
        file, line = own[-1]
        return f"{file.replace(chr(92), '/').rpartition('/')[2]}:{line}"


@dataclass
class Tracebacks:
    """`raised`: in the order of the logs."""

    raised: list[LoggedError] = field(default_factory=list)
    open: dict[LineWriter, _Open] = field(default_factory=dict)
    spawned: str = ""
    is_ignored: bool = False
    record: tuple[LineWriter, int] | None = None  # of SGLang, whose first line alone has a name

    def goes_on(self) -> bool:
        return bool(self.open)

    def end(self) -> None:
        """Of a log."""
        self.open.clear()
        self.spawned, self.is_ignored = "", False

    def read(self, line: Line) -> None:
        if len(self.raised) >= _MOST:
            self.open.clear()
            return
        text = line.text
        if spawned := _SPAWNED.search(text):
            self.spawned = f"process {spawned[1]}"
        if text.startswith("Exception ignored"):
            self.is_ignored = True
        line = self._of_record(line)
        traceback = self.open.get(line.writer)
        if HEADER in text or (traceback is None and _FRAME.match(text)):
            self._begin(line, traceback)
        elif traceback is None:
            self._alone(line)
        else:
            self._go_on(line, traceback)

    def _of_record(self, line: Line) -> Line:
        """The line, as the writer's of the line before it, if that began with a name alone."""
        if line.writer == LineWriter() and self.record and self.record[1] == line.number - 1:
            line = replace(line, writer=self.record[0])
        is_named = _PART.fullmatch(line.writer.label) and line.writer in (
            *self.open,
            *([line.writer] if HEADER in line.text else []),
        )
        self.record = (line.writer, line.number) if is_named else None
        return line

    def _begin(self, line: Line, traceback: _Open | None) -> None:
        is_chain = traceback is not None and traceback.after < 0
        if traceback is not None and (is_chain or traceback.in_group) and traceback.raised.errors:
            traceback.frames = []
            return
        writer = line.writer
        if self.spawned:
            writer, self.spawned = writer._replace(label=self.spawned), ""
        new = _Open(LoggedError(line.log, line.number, writer, time=line.time))
        new.is_mixed = traceback is not None and not traceback.raised.errors
        new.in_group = "Exception Group" in line.text
        if "File" in line.text and (found := _FRAME.match(line.text)):
            new.frames.append((found[1], found[2]))
        self.open[line.writer] = new

    def _alone(self, line: Line) -> None:
        """The last line of a traceback whose beginning is not in the log."""
        text = line.text.lstrip()
        if (found := _ABORTED.search(text)) and line.writer.rank is None:
            line = replace(line, writer=line.writer._replace(rank=rank_in(line.raw)))
        found = found or _ERROR.match(text)
        if not found or found["text"] is None or "Warning" in found["type"]:
            return
        traceback = _Open(LoggedError(line.log, line.number, line.writer, time=line.time))
        self.open[line.writer] = traceback
        self._error(line, traceback, found)

    def _go_on(self, line: Line, traceback: _Open) -> None:
        traceback.read += 1
        if traceback.read > _MOST_LINES:
            del self.open[line.writer]
            return
        text = _GROUP.sub("", line.text, count=1) if traceback.in_group else line.text
        if found := _FRAME.match(text):
            if traceback.raised.errors and traceback.after >= 0 and not traceback.in_group:
                self._begin(line, None)  # another one, cut above
            self.open[line.writer].frames.append((found[1], found[2]))
        elif traceback.raised.errors:
            self._below(line, text, traceback)
        elif traceback.frames and (found := _ERROR.match(text) or _BELOW.match(text)):
            self._error(line, traceback, found)

    def _below(self, line: Line, text: str, traceback: _Open) -> None:
        """After an exception: more of its message, or a chain that goes on."""
        if any(chain in text for chain in _CHAIN):
            traceback.after = -1000
            return
        traceback.after += 1
        if traceback.frames:  # of another traceback of the chain
            if found := _ERROR.match(text) or _BELOW.match(text):
                self._error(line, traceback, found)
            return
        if not traceback.in_group and _ERROR.match(text) and not text.startswith("nccl"):
            del self.open[line.writer]
            self._alone(line)
            return
        traceback.raised.more.append(text)
        if traceback.after >= _AFTER:
            del self.open[line.writer]

    def _error(self, line: Line, traceback: _Open, error: re.Match[str]) -> None:
        traceback.raised.errors.append((error["type"], (error["text"] or "").strip()))
        traceback.raised.lines.append(line.number)
        traceback.raised.places.append(traceback.place)
        traceback.frames, traceback.after = [], 0
        if self.is_ignored:
            self.is_ignored = False
        elif len(traceback.raised.errors) == 1:
            self.raised.append(traceback.raised)
