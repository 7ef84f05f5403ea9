"""Run a program of torch.distributed, unchanged, watch what its ranks call, and say what went wrong."""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from collectives.call import Call
from collectives.diagnosis import Verdict
from collectives.world_watch import Worlds

# How often the ranks' files are read, in seconds.
_TICK = 0.02

# A fault must be there this long without anything moving before it is told, so that all logs are of one moment.
_SURE = 0.6

# After a rank has raised or died the launcher has this long to end the others.
_LAUNCHER = 5.0


def run(
    command: list[str], hang_after: float = 30.0, timeout: float | None = None, tell: Callable[[str], None] = lambda text: None
) -> tuple[Verdict, int]:
    """Run the command to its end, or until its fault is known; return the verdict and the exit status (see `status`).

    It hangs when nothing has moved for `hang_after` seconds while a rank is inside a call. `tell` hears of what is slow. After
    `timeout` seconds the program is ended as it is. Whatever happens, no process of it is left behind.
    """
    folder = Path(tempfile.mkdtemp(prefix="collectives-diagnose-"))
    adopted = _adopt_orphans()
    try:
        try:
            process = subprocess.Popen(command, env=environment(folder))
        except OSError as error:
            raise ValueError(f"{command[0]} cannot be run: {error.strerror}.") from None
        worlds = Worlds(folder)
        try:
            verdict = _Watch(process, worlds, hang_after, timeout, tell).verdict()
        finally:
            _end_all(process, folder)
        return _with_notes(verdict, worlds), status(verdict, process.returncode)
    finally:
        _adopt_orphans(adopted)
        shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path) -> dict[str, str]:
    """This process's, with all that lets the recorder into the Python processes that are started in it."""
    paths = [str(Path(__file__).parent / "diagnosed"), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "COLLECTIVES_DIAGNOSE": str(folder)}


def status(verdict: Verdict, returncode: int) -> int:
    """The program's own, where there is nothing to say; else 1."""
    if verdict.kind in ("ok", "not-distributed"):
        return returncode if returncode >= 0 else 128 - returncode
    return 1


def as_json(verdict: Verdict, command: list[str], returncode: int) -> dict:
    """The verdict as plain values."""
    from collectives.diagnosis_text import told

    def plain(call: Call) -> dict:
        place = {"rank": call.rank, "file": call.file, "line": call.line, "function": call.function}
        return {
            **place,
            "call": call.awaited or call.name or None,
            "args": told(call).partition("(")[2][:-1] if call.name else None,
        }

    ranks = [{"rank": rank, "does": doing, "where": where} for rank, (doing, where) in sorted(verdict.lines.items())]
    fields = {name: getattr(verdict, name) for name in ("group", "seq", "field", "says")}
    return {
        "verdict": verdict.kind,
        "guilty": [plain(call) for call in verdict.guilty],
        "ranks": ranks,
        "cycle": list(verdict.cycle),
        **fields,
        "command": command,
        "status": returncode,
    }


class _Watch:
    """One run of the program."""

    def __init__(self, process: subprocess.Popen, worlds: Worlds, hang_after: float, timeout: float | None, tell: Callable):
        self.process = process
        self.worlds = worlds
        self.hang_after = hang_after
        self.tell = tell
        self.begin = self.moved = self.asked = time.monotonic()
        self.deadline = self.begin + timeout if timeout else float("inf")
        self.suspected: tuple[str, float] = ("", 0.0)
        self.told_slow = False

    def verdict(self) -> Verdict:
        while self.process.poll() is None:
            now = time.monotonic()
            if self.worlds.poll():
                self.moved = now
            if now > self.deadline:
                return self._at_the_limit()
            if now > self.asked + max(0.2, self.hang_after / 4) and now > self.moved + min(1.0, self.hang_after / 4):
                self.asked = now
                self.moved = now if self.worlds.has_heard_more() else self.moved
                self.worlds.ask()
            if now > self.moved + _SURE / 2 and (verdict := self._look(now)) is not None:
                return verdict
            time.sleep(_TICK)
        time.sleep(_TICK)
        self.worlds.poll()
        return self._at_the_end(self.worlds.verdict(stalled=True))

    def _look(self, now: float) -> Verdict | None:
        """What is certain by now; None while the program may still come to a good end."""
        stalled = now > self.moved + self.hang_after
        verdict = self.worlds.verdict(stalled)
        if verdict.kind == "slow" and not self.told_slow:
            self.told_slow = True
            self.tell(verdict.says)
        if verdict.kind in ("ok", "slow", "not-distributed"):
            self.suspected = "", now
            return None
        if self.suspected[0] != verdict.says:
            self.suspected = verdict.says, now
        patience = _LAUNCHER if verdict.kind in ("raised", "died") else _SURE
        return verdict if now > self.suspected[1] + patience or (stalled and patience == _SURE) else None

    def _at_the_limit(self) -> Verdict:
        self.worlds.ask()
        time.sleep(0.3)
        self.worlds.poll()
        verdict = self.worlds.verdict(stalled=True)
        passed = f"{time.monotonic() - self.begin:.0f} s"
        if verdict.kind in ("ok", "not-distributed"):
            return Verdict("slow", f"slow: the program had not ended after {passed}", lines=verdict.lines)
        return verdict

    def _at_the_end(self, verdict: Verdict) -> Verdict:
        """The program has ended by itself."""
        code, raised = self.process.returncode, self.worlds.raised_outside()
        if verdict.kind not in ("ok", "not-distributed") or code == 0:
            return verdict
        if raised is not None:
            file, line, function = raised["where"]
            rank = int(raised["rank"]) if raised["rank"] is not None else -1
            who = f"rank {rank}" if rank >= 0 else "a process without a rank"
            place = Call(rank, -1, "", file=file, line=line, function=function)
            return Verdict(
                "raised", f"raised: {who}: {raised['text']}\n  {file}:{line} in {function}", guilty=(place,), lines=verdict.lines
            )
        if verdict.kind == "not-distributed":
            return verdict
        return Verdict(
            "partial", f"partial: the program ended with status {code}; its calls fitted, and no rank raised", lines=verdict.lines
        )


def _with_notes(verdict: Verdict, worlds: Worlds) -> Verdict:
    import dataclasses

    notes = worlds.notes()
    if not notes:
        return verdict
    kind = "partial" if verdict.kind == "ok" else verdict.kind
    return dataclasses.replace(verdict, kind=kind, says="\n  ".join([verdict.says.replace("ok:", "partial:", 1), *notes]))


def _adopt_orphans(wanted: int = 1) -> int:
    """Have orphans of our children become ours, so that none is lost sight of; return how it was before."""
    if sys.platform != "linux":
        return 0
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(37, ctypes.byref(before))  # PR_GET_CHILD_SUBREAPER
    libc.prctl(36, wanted)  # PR_SET_CHILD_SUBREAPER
    return before.value


def _end_all(process: subprocess.Popen, folder: Path) -> None:
    """Kill what is left of the program: its process tree, and whatever else of it has lost its parent."""
    import psutil

    until = time.monotonic() + 10
    while time.monotonic() < until:
        found = [one for one in _family(process, folder) if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        if not found:
            break
        for one in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(found, timeout=0.5)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _family(process: subprocess.Popen, folder: Path) -> list:
    import psutil

    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = [psutil.Process(process.pid)] if process.returncode is None else []
        found = {one.pid: one for one in [*tree, *(tree[0].children(recursive=True) if tree else [])]}
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.pid != os.getpid() and one.environ().get("COLLECTIVES_DIAGNOSE") == str(folder):
                found[one.pid] = one
    return list(found.values())
