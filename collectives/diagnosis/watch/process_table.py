"""The processes of a program, seen from outside and by what they noted at their start."""

import contextlib
import json
import os
import time
from pathlib import Path

import psutil

from collectives.diagnosis.rules.latecomers import Process
from collectives.diagnosis.timing import LOOK_AT_PROCESSES
from collectives.recording import launchers


class ProcessTable:
    """The processes below this one, and those that were. `folder`: where they note themselves.

    `command`: the process that is the program's command.
    """

    def __init__(self, folder: Path | None):
        self.folder = folder
        self.command: int | None = None
        self.inherits: dict[int, bool] = {}
        self.table: dict[int, Process] = {}
        self.read_at = 0.0
        self.notes: dict[Path, tuple[int, dict]] = {}

    def processes(self) -> dict[int, Process]:
        """By their number; as they were a moment ago."""
        if self.folder is not None and time.monotonic() > self.read_at + LOOK_AT_PROCESSES:
            self.table = self._ended() | self._running()
            self.read_at = time.monotonic()
        return self.table

    def newest_attempt(self) -> int:
        """Of an elastic job, as far as a process has said so."""
        return max((process.attempt for process in self._ended().values()), default=0)

    def inherits_rank(self, pid: int) -> bool:
        """Whether this process has the number of its parent, as the helpers of a rank do."""
        if pid not in self.inherits:
            recorded = self.recorded()
            own, name = recorded.get(pid, {}), launchers.TORCHRUN[0]
            parent = recorded.get(own.get("parent", 0), {})
            number = own.get("environ", {}).get(name)
            self.inherits[pid] = (
                number is not None and parent.get("environ", {}).get(name) == number
            )
        return self.inherits[pid]

    def recorded(self) -> dict[int, dict]:
        """What processes said of themselves when they started; see recording/process_start.py."""
        for path in self.folder.glob("*.start") if self.folder else ():
            with contextlib.suppress(OSError, ValueError):
                changed = path.stat().st_mtime_ns
                if self.notes.get(path, (0, {}))[0] != changed:
                    self.notes[path] = changed, json.loads(path.read_text())
        return {int(path.stem): note for path, (_, note) in self.notes.items()}

    def _ended(self) -> dict[int, Process]:
        return {
            pid: Process(
                pid,
                note["parent"],
                tuple(note["command"]),
                note["environ"],
                note["runs"],
                note["is_helper"],
                note["at"],
                runs_still=False,
            )
            for pid, note in self.recorded().items()
        }

    def _running(self) -> dict[int, Process]:
        ended, running, here = self._ended(), {}, os.getpid()
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error), child.oneshot():
                if child.status() == psutil.STATUS_ZOMBIE:
                    continue
                parent, recorded = child.ppid(), ended.get(child.pid)
                # subtle: an orphan is our child.
                known = recorded.parent if recorded else parent
                environ = child.environ() | (recorded.environ if recorded else {})
                running[child.pid] = Process(
                    child.pid,
                    0 if known == here else known,
                    tuple(child.cmdline()),
                    environ,
                    recorded.runs if recorded else None,
                    bool(recorded and recorded.is_helper),
                    recorded.began if recorded else 0,
                    recorded=recorded is not None,
                    is_command=child.pid == self.command,
                )
        return running
