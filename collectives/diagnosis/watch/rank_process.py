"""One rank of a program under diagnosis, seen through the file that its process writes."""

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

from collectives.diagnosis.rules.rank_state import Facts, State, state
from collectives.recording import call_log, stack


class RankProcess:
    """One process that is a rank, or will be one.

    `gone`: when it was seen to have ended, and its exit status if that is known.
    """

    def __init__(self, file: BinaryIO, folder: Path | None = None):
        self.log = call_log.LogReader(file)
        self.folder = folder
        self.gone: tuple[int, int | None] | None = None

    def head(self) -> dict[str, int]:
        """The head of its log, which must be ready."""
        head = self.log.head()
        assert head is not None
        return head

    def look(self) -> None:
        """Note whether it has ended."""
        if self.gone is None and (ending := _ending(self.head()["pid"])) is not None:
            self.gone = time.monotonic_ns(), ending[0]

    def trust_launcher(self) -> None:
        """Its launcher reports success: it saw how this rank ended, or ended it itself."""
        if self.gone is not None and self.gone[1] in (None, -signal.SIGTERM):
            self.gone = self.gone[0], 0

    def read(self, place: int) -> dict:
        """What the process wrote there (see call_log): call_log.ANSWER or call_log.RAISED."""
        with contextlib.suppress(ValueError):
            return json.loads(self.log.text(place))
        return {}

    def facts(self) -> Facts:
        head = self.head()
        gone_at, exit_status = self.gone or (None, None)
        crash_signal, crash_place = (0, stack.NOWHERE) if gone_at is None else self._crash()
        return Facts(
            gone_at=gone_at,
            exit_status=exit_status,
            exception=self.read(call_log.RAISED),
            answer=self.read(call_log.ANSWER),
            noted_end=head["ended"],
            calls=head["count"],
            is_inside_call=bool(self.log.open),
            is_stopped=gone_at is None and _stat(head["pid"])[:1] in (["T"], ["t"]),
            crash_signal=crash_signal,
            crash_place=crash_place,
        )

    def state(self) -> State:
        """How it is, as far as that is known without the other ranks."""
        return state(self.facts())

    def _crash(self) -> tuple[int, stack.Frame]:
        """The signal that ended it, and the frame to name, if faulthandler noted them."""
        if self.folder is None:
            return 0, stack.NOWHERE
        file = self.folder / f"{self.head()['pid']}.stack"
        text = file.read_text(errors="replace") if file.exists() else ""
        cause = text.partition("\n")[0].removeprefix("Fatal Python error: ").replace("-", " ")
        signals = (one for one in signal.valid_signals() if signal.strsignal(one) == cause)
        place = stack.named(stack.main_thread(text))
        return next(signals, 0), place or stack.NOWHERE


def sleep(seconds: float, ranks: Iterable[RankProcess]) -> None:
    """Sleep, and note at once which ranks end meanwhile, and how.

    Nobody can see how a process ended once its parent has asked for it.
    """
    until = time.monotonic() + seconds
    running: dict[int, RankProcess] = {}
    for rank in ranks:
        if rank.gone is None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # it has just ended
                running[os.pidfd_open(rank.head()["pid"])] = rank
    try:
        waits = set(running)
        while waits and (left := until - time.monotonic()) > 0:
            ended = {one for one in connection.wait(waits, left) if isinstance(one, int)}
            waits -= ended
            for process in ended:
                running[process].look()
    finally:
        for process in running:
            os.close(process)
    time.sleep(max(0, until - time.monotonic()))


def _ending(pid: int) -> tuple[int | None] | None:
    """None while the process runs; else a tuple with its exit status, negative for a signal.

    The status is None if its parent has already asked for it.
    """
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
