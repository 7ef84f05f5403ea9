"""What launchers, schedulers and the kernel say of how a process ended."""

import re
import signal
from dataclasses import dataclass, field

from collectives.diagnosis.log.lines import Line

NEEDLES = [
    *(b"failed (exitcode: ", b"Root Cause (first observed failure)", b"exits with return code"),
    *(b"srun: error: ", b"noticed that process rank", b"BY SIGNAL", b"terminated with signal "),
    *(
        b"terminated with code ",
        b"Fatal Python error: ",
        b"EXIT CODE:",
        b"terminated with exit code ",
    ),
    *(b"died unexpectedly", b"Killed process "),
]
_PATTERNS = [
    r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+)",
    r"--local[_-]rank=(?P<local>\d+)\b.*exits with return code = (?P<code>-?\d+)",
    r"exits with return code = (?P<code>-?\d+)",
    r"srun: error: (?P<host>[\w.-]+): tasks? (?P<task>[\d,-]+): (?P<why>[^.(]+)",
    r"noticed that process rank (?P<rank>\d+) with PID .*? on node (?P<host>\S+) exited on "
    r"signal (?P<signal>\d+)",
    r"RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<host>\S+).*?KILLED BY SIGNAL: (?P<signal>\d+)",
    r"process (?P<process>\d+) terminated with signal (?P<name>SIG[A-Z]+)",
    r"process (?P<process>\d+) terminated with exit code (?P<code>-?\d+)",
    r"\[rank: (?P<rank>\d+)\] Child process with PID \d+ terminated with code (?P<code>-?\d+)",
    r"Fatal Python error: (?P<why>(?:Segmentation fault|Bus error|Aborted|Floating point \w+))",
    r"Worker proc (?P<label>[\w-]+) died unexpectedly",
    r"Killed process (?P<pid>\d+)",
]
_COMPILED = [re.compile(pattern) for pattern in _PATTERNS]
_BLOCK = re.compile(r"\s*(time|host|rank|exitcode|error_file|traceback)\s*: (.*)")
_BLOCK_LINES = 40

# In the words of Slurm and of Python.
_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Aborted": signal.SIGABRT,
    "Terminated": signal.SIGTERM,
}
# Nobody dies of these by itself: they are what a launcher sends to the rest.
_SENT = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


@dataclass
class LoggedEnd:
    """`who`: as in local rank 2 on node-b. `how`: as in signal 9 (SIGKILL), or exit code 1."""

    log: str
    line: int
    rank: int | None = None
    local: int | None = None
    label: str = ""
    host: str = ""
    code: int | None = None
    number: int | None = None  # of a signal
    why: str = ""
    error: str = ""  # what the launcher knows of its exception
    is_first: bool = False

    @property
    def is_cause(self) -> bool:
        """Whether the process died by itself, and without an exception."""
        return bool(self.why) or (self.number is not None and self.number not in _SENT)

    @property
    def who(self) -> str:
        names = [f"rank {self.rank}"] if self.rank is not None else []
        names += [f"local rank {self.local}"] if self.local is not None else []
        names = names or ([self.label] if self.label else ["a process"])
        text = names[0] if len(names) < 2 else f"{names[0]} ({names[1]})"
        return f"{text} on {self.host}" if self.host else text

    @property
    def how(self) -> str:
        if self.why and self.number is None:
            return self.why
        if self.number is None:
            return f"exit code {self.code}"
        return f"signal {self.number} ({signal_name(self.number)})"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


@dataclass
class Endings:
    """`all`: in the order of the logs."""

    all: list[LoggedEnd] = field(default_factory=list)
    block: LoggedEnd | None = None
    left: int = 0

    def goes_on(self) -> bool:
        return self.block is not None

    def read(self, line: Line) -> None:
        if self.block is not None:
            self._read_block(line, self.block)
        if "Root Cause (first observed failure)" in line.text:
            self.block, self.left = LoggedEnd(line.log, line.number, is_first=True), _BLOCK_LINES
            return
        if not line.needles or len(self.all) > 1000:
            return
        for pattern in _COMPILED:
            if found := pattern.search(line.raw):
                self._note(line, found.groupdict())
                return

    def _note(self, line: Line, said: dict[str, str]) -> None:
        ending = LoggedEnd(line.log, line.number, host=said.get("host", ""))
        ending.rank = _number(said.get("rank"))
        ending.rank = line.writer.rank if ending.rank is None else ending.rank
        ending.local = _number(said.get("local"))
        for name, words in (
            ("process", "process"),
            ("task", "task"),
            ("pid", "process"),
            ("label", ""),
        ):
            if said.get(name):
                ending.label = f"{words} {said[name]}".strip()
        _set_code(ending, _number(said.get("code")))
        if why := (said.get("why") or "").strip():
            number = _SIGNALS.get(why)
            ending.number = int(number) if number else None
            if number is None and not re.match("Exited with", why):
                ending.why = why
            elif match := re.match(r"Exited with exit code (\d+)", why):
                _set_code(ending, int(match[1]))
        if said.get("signal"):
            ending.number = int(said["signal"])
        if said.get("name"):
            ending.number = int(getattr(signal, said["name"], 0)) or None
        if said.get("pid"):
            ending.number, ending.why = int(signal.SIGKILL), "out of memory"
        if said.get("label"):
            ending.why = "died unexpectedly"
        ending.is_first = "failed (exitcode" in line.raw
        self.all.append(ending)

    def _read_block(self, line: Line, ending: LoggedEnd) -> None:
        self.left -= 1
        text = line.text
        if match := _BLOCK.match(text):
            name, value = match[1], match[2].strip()
            if name == "host":
                ending.host = value
            elif name == "rank" and (both := re.match(r"(\d+) \(local_rank: (\d+)\)", value)):
                ending.rank, ending.local = int(both[1]), int(both[2])
            elif name == "exitcode" and (code := re.match(r"-?\d+", value)):
                _set_code(ending, int(code[0]))
        elif match := re.match(r"\s+((?:\w+\.)*\w*(?:Error|Exception)\b.*)", text):
            ending.error = match[1].strip()
        if text.startswith("=====") or self.left <= 0:
            self.block = None
            if ending.code is not None or ending.number is not None:
                self.all.append(ending)

    def end(self) -> None:
        """Of a log."""
        if self.block is not None and (self.block.code, self.block.number) != (None, None):
            self.all.append(self.block)
        self.block = None


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _set_code(ending: LoggedEnd, code: int | None) -> None:
    """A launcher writes -9 for signal 9, and a shell 137."""
    ending.code = code
    if code is not None and code < 0:
        ending.number = -code
    elif code is not None and 128 < code < 160:
        ending.number = code - 128
