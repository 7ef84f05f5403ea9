"""One rank of a program under diagnosis, seen through the file that its process writes: what it calls, and how it ends."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from multiprocessing import connection
from pathlib import Path
from typing import BinaryIO

from collectives.diagnosis.rules.snapshot import LEFT, State
from collectives.recording import call_log, stack


class Rank:
    """One process that has, or will have, a rank."""

    def __init__(self, file: BinaryIO, folder: Path | None = None):
        self.log = call_log.Reader(file)
        self.folder = folder
        self.gone: tuple[int, int | None] | None = None  # when it was seen to have ended, and how

    def look(self) -> None:
        if self.gone is None and (ending := _ending(self.log.head()["pid"])) is not None:
            self.gone = time.monotonic_ns(), ending[0]

    def trust_launcher(self) -> None:
        """The launcher, which alone could see how this rank ended, or ended it itself, is content."""
        if self.gone is not None and self.gone[1] in (None, -signal.SIGTERM):
            self.gone = self.gone[0], 0

    def read(self, place: int) -> dict:
        with contextlib.suppress(ValueError):
            return json.loads(self.log.text(place))
        return {}

    def has_last_word(self) -> bool:
        """Whether its answers are of now: it runs, or answered when it ended, or when it had destroyed its groups and called no
        more."""
        if self.gone is None and not self.log.text(call_log.RAISED):
            return True
        answer = self.read(call_log.ANSWER)
        return bool(
            answer.get("last")
            or (answer.get("destroyed") and answer["count"] == self.log.head()["count"])
        )

    def has_failed(self) -> bool:
        """Whether it raised, or ended badly, as far as can be told cheaply."""
        left_badly = self.gone is not None and self.gone[1] != 0 and not self.log.head()["ended"]
        return left_badly or bool(self.log.text(call_log.RAISED))

    def state(self) -> State:
        answer, raised = self.read(call_log.ANSWER), self.read(call_log.RAISED)
        where, in_torch = tuple(answer.get("where") or ("", 0, "")), bool(answer.get("in_torch"))
        if raised and not (raised["is_guess"] and self.gone is not None and self.gone[1] == 0):
            return State("raised", raised["text"], tuple(raised["where"]), raised["at"])
        # It may have gone on since it last answered: as a rank in C that lets no other thread run, ours included, to answer.
        seen = (
            where
            if answer.get("count") == self.log.head()["count"] and not self.log.open
            else ("", 0, "")
        )
        ended, left = (self.log.head() or {}).get("ended"), tuple(answer.get("exit") or ("", 0, ""))
        if self.gone is None:
            if _stat(self.log.head()["pid"])[:1] in (
                ["T"],
                ["t"],
            ):  # where it stood when it last answered, it may have left
                return State(text="is stopped", stopped=True)
            return (
                State("returned", where=left, at=ended)
                if ended
                else State(where=seen, in_torch=in_torch and bool(seen[0]))
            )
        at, status = self.gone
        if answer.get("last") and status in (
            None,
            -signal.SIGTERM,
        ):  # its launcher came while Python ended it
            return State("returned", where=left, at=at)
        crash, stood = self._crash()
        if crash or (status is not None and status < 0):
            return State(
                "died",
                f"was killed by {_signal(crash or -status)}",
                stood if stood[0] else seen,
                at,
                is_old=not stood[0],
            )
        if ended and not status:
            return State("returned", where=left, at=ended)
        if status == 0:
            return State("returned", LEFT, at=at)
        text = (
            f"ended with exit status {status}" if status else "died (killed, or left by os._exit)"
        )
        return (
            State("raised", text, where, at)
            if ended
            else State("died", text, seen, at, is_old=True)
        )

    def _crash(self) -> tuple[int, tuple[str, int, str]]:
        """The signal that ended it, if faulthandler could tell, and where it stood: file, line, function."""
        crash = self.folder and self.folder / f"{self.log.head()['pid']}.stack"
        told = crash.read_text(errors="replace") if crash and crash.exists() else ""
        cause = told.partition("\n")[0].removeprefix("Fatal Python error: ").replace("-", " ")
        number = next((one for one in signal.valid_signals() if signal.strsignal(one) == cause), 0)
        frames = [
            (frame["file"], int(frame["line"]), frame["function"])
            for frame in stack.main_thread(told)
        ]
        own = next((frame for frame in frames if not stack.is_library(frame[0])), ("", 0, ""))
        return number, own


def sleep(seconds: float, ranks: Iterable[Rank]) -> None:
    """Note at once which of the ranks end meanwhile, and how: when their parent has asked for that, nobody else can."""
    until, running = time.monotonic() + seconds, {}
    for rank in ranks:
        if rank.gone is None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # it has just ended
                running[os.pidfd_open(rank.log.head()["pid"])] = rank
    try:
        waits = set(running)
        while waits and (left := until - time.monotonic()) > 0:
            ended = set(connection.wait(waits, left))
            waits -= ended
            for process in ended:
                running[process].look()
    finally:
        for process in running:
            os.close(process)
    time.sleep(max(0, until - time.monotonic()))


def _ending(pid: int) -> tuple[int | None] | None:
    """None while a process runs; else its exit status if it can be known (a signal is negative): before its parent has asked."""
    state, *fields = _stat(pid) or [""]
    if not state:
        if sys.platform == "linux":
            return (None,)
        import psutil

        return None if psutil.pid_exists(pid) else (None,)
    if state not in "ZX":
        return None
    status = int(fields[-1]) if len(fields) >= 49 else 0
    return (-(status & 0x7F) if status & 0x7F else status >> 8,)


def _stat(pid: int) -> list[str]:
    """What Linux says of a process, its state first; empty where there is nothing to read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _signal(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
