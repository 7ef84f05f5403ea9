"""Run a program of torch.distributed, unchanged, watch what its ranks call, and say what went wrong."""

import contextlib
import ctypes
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from collectives.diagnosis.rules import hints
from collectives.diagnosis.rules.report import format_call, location, write
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.watch.hang_monitor import Suspicion
from collectives.diagnosis.watch.job import Worlds
from collectives.recording.call import Call

# How often the ranks' files are read, in seconds.
_TICK = 0.02


def run(
    command: list[str],
    hang_after: float = 30.0,
    timeout: float | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Verdict, int]:
    """Run the command to its end, or until its fault is known; return the verdict and the exit status (see `status`).

    It hangs when nothing has moved for `hang_after` seconds while a rank is inside a call. `tell` hears of what is slow. After
    `timeout` seconds the program is ended as it is. Whatever happens, no process of it is left behind.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="collectives-diagnose-"))
    except OSError as error:
        raise ValueError(
            f"no folder for what the ranks note: {error}. TMPDIR may name another place."
        ) from None
    adopted, others = _adopt_orphans(), _children()
    try:
        try:
            bound = _end_with_us if sys.platform == "linux" else None
            process = subprocess.Popen(command, env=environment(folder), preexec_fn=bound)
        except OSError as error:
            raise ValueError(f"{command[0]} cannot be run: {error.strerror}.") from None
        worlds = Worlds(folder)
        try:
            verdict = _watch(process, Suspicion(worlds, hang_after, tell), timeout)
        finally:
            _end_all(process, folder, others)
            worlds.machines.close()
        verdict = dataclasses.replace(verdict, hints=hints.hints(worlds.noticed(), verdict.kind))
        return _with_notes(verdict, worlds), status(verdict, process.returncode)
    finally:
        _adopt_orphans(adopted)
        shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path) -> dict[str, str]:
    """This process's, with all that lets the recorder into the Python processes that are started in it."""
    paths = [str(Path(__file__).parents[1] / "recording" / "startup"), os.environ.get("PYTHONPATH")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "COLLECTIVES_DIAGNOSE": str(folder),
    }


def status(verdict: Verdict, returncode: int) -> int:
    """The program's own, where there is nothing to say; else 1."""
    if verdict.kind in ("ok", "not-distributed"):
        return returncode if returncode >= 0 else 128 - returncode
    return 1


def as_json(verdict: Verdict, command: list[str], returncode: int) -> dict:
    """The verdict as plain values."""

    def plain(call: Call) -> dict:
        place = {"rank": call.rank, "file": call.file, "line": call.line, "function": call.function}
        return {
            **place,
            "call": call.awaited or call.name or None,
            "args": format_call(call).removeprefix("wait() for ").partition("(")[2][:-1]
            if call.name
            else None,
        }

    ranks = [
        {"rank": rank, "does": doing, "where": where}
        for rank, (doing, where) in sorted(verdict.lines.items())
    ]
    fields = {name: getattr(verdict, name) for name in ("group", "seq", "field", "says")}
    return {
        "verdict": verdict.kind,
        "guilty": [plain(call) for call in verdict.guilty],
        "ranks": ranks,
        "cycle": list(verdict.cycle),
        **fields,
        "hints": [
            {**plain(hint.call), "says": f"{hint.risk}: {hint.cure}"} for hint in verdict.hints
        ],
        "command": command,
        "status": returncode,
    }


def _watch(process: subprocess.Popen, suspicion: Suspicion, timeout: float | None) -> Verdict:
    begin = time.monotonic()
    while process.poll() is None:
        if (verdict := suspicion.look()) is not None:
            suspicion.publish(verdict)
            return verdict
        if timeout is not None and time.monotonic() > begin + timeout:
            verdict = suspicion.last_word()
            if verdict.kind in ("ok", "not-distributed"):
                headline = f"slow: the program had not ended after {timeout:g} s"
                return Verdict("slow", write(headline, verdict.lines, []), lines=verdict.lines)
            return dataclasses.replace(
                verdict, says=f"{verdict.says}\n  ended after {timeout:g} s, the time limit"
            )
        suspicion.worlds.sleep(_TICK)
    suspicion.worlds.sleep(_TICK)
    suspicion.worlds.poll()
    if (world := suspicion.worlds.divided()) is not None:
        suspicion.worlds.exchange(world, tell=True)
    verdict = _at_the_end(suspicion.worlds, process.returncode)
    return verdict if verdict.kind == "ok" else suspicion.worlds.machines.verdict or verdict


def _at_the_end(worlds: Worlds, code: int) -> Verdict:
    """The program has ended by itself."""
    if code == 0:
        worlds.trust_launcher()
    verdict, raised = worlds.verdict(stalled=True), worlds.first_raised()
    if verdict.kind not in ("ok", "not-distributed") or code == 0:
        return verdict
    if raised is not None:
        file, line, function = raised["where"]
        rank = int(raised["rank"]) if raised["rank"] is not None else -1
        who = f"rank {rank}" if rank >= 0 else "a process without a rank"
        guilty = (Call(rank, -1, "", file=file, line=line, function=function),)
        return Verdict(
            "raised",
            f"raised: {who}: {raised['text']}\n  {location(guilty[0])}",
            guilty,
            lines=verdict.lines,
        )
    if verdict.kind == "not-distributed":
        return verdict
    says = f"partial: the program ended with status {code}; its calls fitted, and no rank raised"
    return Verdict("partial", says, lines=verdict.lines)


def _with_notes(verdict: Verdict, worlds: Worlds) -> Verdict:
    notes = worlds.notes()
    if not notes:
        return verdict
    kind = "partial" if verdict.kind == "ok" else verdict.kind
    return dataclasses.replace(
        verdict, kind=kind, says="\n  ".join([verdict.says.replace("ok:", "partial:", 1), *notes])
    )


def _adopt_orphans(wanted: int = 1) -> int:
    """Have orphans of our children become ours, so that none is lost sight of; return how it was before."""
    if sys.platform != "linux":
        return 0
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(37, ctypes.byref(before))  # PR_GET_CHILD_SUBREAPER
    libc.prctl(36, wanted)  # PR_SET_CHILD_SUBREAPER
    return before.value


def _end_with_us() -> None:
    """In the child: whoever kills us so that we can end nothing ends the program (SIGTERM), as far as it ends its own children."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _children() -> set:
    import psutil

    return set(psutil.Process().children())


def _end_all(process: subprocess.Popen, folder: Path, others: set) -> None:
    """Kill what is left of the program: its process tree, and whatever else of it has lost its parent; not our `others`."""
    import psutil

    _end_ranks(process, folder)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        found = [
            one
            for one in _family(process, folder, others)
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE
        ]
        if not found:
            break
        for one in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(found, timeout=0.5)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _end_ranks(process: subprocess.Popen, folder: Path) -> None:
    """Kill the program's ranks and its innermost processes: MPI's proxies, between, then remove their files and end.

    The command itself is stopped meanwhile, for it would only complain.
    """
    import psutil

    if process.poll() is not None:  # its number may be another's by now
        return
    with contextlib.suppress(psutil.Error):
        command = psutil.Process(process.pid)
        command.suspend()
        below, known = (
            command.children(recursive=True),
            {int(file.name.partition("-")[0]) for file in folder.glob("*.calls")},
        )
        between = [
            one
            for one in below
            if one.pid not in known and any(other.ppid() == one.pid for other in below)
        ]
        for one in sorted(
            set(below) - set(between), key=lambda one: one.pid not in known
        ):  # a rank, then the child it waits for
            one.kill()
        psutil.wait_procs(between, timeout=0.3)


def _family(process: subprocess.Popen, folder: Path, others: set) -> list:
    import psutil

    found = {}
    for child in _children() - others:  # the program, and the orphans that we adopted
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {one.pid: one for one in [child, *child.children(recursive=True)]}
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.pid != os.getpid() and one.environ().get("COLLECTIVES_DIAGNOSE") == str(folder):
                found[one.pid] = one
    return list(found.values())
