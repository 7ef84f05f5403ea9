"""Run a program of torch.distributed unchanged, watch its ranks, and report what went wrong."""

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import psutil

from collectives.diagnosis.rules import hints
from collectives.diagnosis.rules.report import format_arguments
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.timing import POLL
from collectives.diagnosis.watch.job import OK_AS_SEEN, Job
from collectives.diagnosis.watch.job_monitor import JobMonitor
from collectives.diagnosis.watch.process_tree import (
    adopt_orphans,
    children,
    end_all,
    end_with_parent,
)
from collectives.recording.call import Call
from collectives.recording.ending import Ending


def run(
    command: list[str],
    hang_after: float = 30.0,
    timeout: float | None = None,
    report: Callable[[str], None] = lambda text: None,
    output: IO | None = None,
    is_seen: Callable[[], bool] = lambda: False,
    wrong_with_gaps: Callable[[Call], str] = lambda call: "",
) -> tuple[Verdict, int]:
    """Run the command to its end, or until its fault is known.

    It hangs when nothing has moved for `hang_after` seconds while a rank is inside a call. `report`
    is called with what is slow. After `timeout` seconds the program is ended, or when its caller
    has seen enough. `output`: where it prints. `wrong_with_gaps`: see `hints`. Whatever happens, no
    process of it is left behind. Returns the verdict, and the exit status (see `status`).
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="collectives-diagnose-"))
    except OSError as error:
        raise ValueError(
            f"no folder for what the ranks note: {error}. TMPDIR may name another place."
        ) from None
    adopted, others = adopt_orphans(), children()
    try:
        try:
            bound = end_with_parent if sys.platform == "linux" else None
            process = subprocess.Popen(
                command, env=environment(folder), preexec_fn=bound, stdout=output, stderr=output
            )
        except OSError as error:
            why = f"cannot be run: {error.strerror}"
            if command[0].endswith(".py"):
                why = f"is no command: -- torchrun --nproc-per-node 2 {command[0]}, say"
            raise ValueError(f"{command[0]} {why}.") from None
        job = Job(folder)
        job.table.command = process.pid
        monitor = JobMonitor(job, hang_after, report, command)
        try:
            verdict = _watch(process, monitor, timeout, is_seen)
            monitor.report_attempts()
        finally:
            end_all(process, folder, others)
            job.nodes.close()
            monitor.meeting.close()
        noticed = hints.hints(job.noticed(), verdict.kind, wrong_with_gaps)
        verdict = dataclasses.replace(verdict, hints=noticed, earlier=tuple(job.attempts))
        return _with_notes(verdict, job), status(verdict, process.returncode)
    finally:
        adopt_orphans(adopted)
        shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path) -> dict[str, str]:
    """This process's environment, and what loads the recorder in each Python process."""
    paths = [str(Path(__file__).parents[1] / "recording" / "startup"), os.environ.get("PYTHONPATH")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "COLLECTIVES_DIAGNOSE": str(folder),
    }


def status(verdict: Verdict, returncode: int) -> int:
    """The program's own, where there is nothing to say; else 1."""
    if verdict.kind.is_good:
        return returncode if returncode >= 0 else 128 - returncode
    return 1


def as_json(verdict: Verdict, command: list[str], returncode: int) -> dict:
    """The verdict as plain values."""

    def plain(call: Call) -> dict:
        place = {"rank": call.rank, "machine": verdict.machines.get(call.rank)}
        place |= {"file": call.file, "line": call.line, "function": call.function}
        return {
            **place,
            "call": call.awaited or call.name or None,
            "args": format_arguments(call) if call.name else None,
        }

    ranks = [
        {"rank": rank, "machine": verdict.machines.get(rank), "does": doing, "where": where}
        for rank, (doing, where) in sorted(verdict.lines.items())
    ]

    def found(verdict: Verdict) -> dict:
        guilty = [plain(call) for call in verdict.guilty]
        return {"verdict": verdict.kind.verdict, "guilty": guilty, "says": verdict.says}

    fields = {name: getattr(verdict, name) for name in ("group", "seq", "field")}
    if verdict.kind is Ending.UNREACHABLE:
        fields["field"] = "machine"
    attempts = [*verdict.earlier, verdict] if verdict.earlier else []
    return {
        "machine": socket.gethostname(),
        **found(verdict),
        "attempts": [found(attempt) for attempt in attempts],
        "ranks": ranks,
        "cycle": list(verdict.cycle),
        **fields,
        "hints": [
            {**plain(hint.call), "says": f"{hint.risk}: {hint.cure}"} for hint in verdict.hints
        ],
        "command": command,
        "status": returncode,
    }


def _watch(
    process: subprocess.Popen,
    monitor: JobMonitor,
    timeout: float | None,
    is_seen: Callable[[], bool],
) -> Verdict:
    begin = time.monotonic()
    while process.poll() is None:
        if is_seen():
            return OK_AS_SEEN
        if (verdict := monitor.look()) is not None:
            monitor.publish(verdict)
            return verdict
        if timeout is not None and time.monotonic() > begin + timeout:
            return _at_the_limit(monitor, timeout)
        monitor.job.sleep(monitor.until_next_look())
    job = monitor.job
    job.sleep(POLL)
    job.poll()
    if (world := job.world_on_several_nodes()) is not None:
        job.exchange(world, send=True)
    verdict = _at_the_end(job, process.returncode)
    return verdict if verdict.kind is Ending.OK else job.nodes.verdict or verdict


def _at_the_limit(monitor: JobMonitor, timeout: float) -> Verdict:
    """The program has not ended in time."""
    verdict = monitor.last_word()
    if verdict.kind.is_good:
        what = f"the program had not ended after {timeout:g} s"
        return Verdict(Ending.SLOW, what, lines=verdict.lines)
    notes = (*verdict.notes, f"ended after {timeout:g} s, the time limit")
    return dataclasses.replace(verdict, notes=notes)


def _at_the_end(job: Job, code: int) -> Verdict:
    """The program has ended by itself."""
    if code == 0:
        job.trust_launcher()
    verdict = job.verdict(stalled=True)
    if not verdict.kind.is_good or code == 0:
        return verdict
    if (raised := job.raised()) is not None:
        return dataclasses.replace(raised, lines=verdict.lines)
    if verdict.kind is Ending.NOT_DISTRIBUTED:
        return verdict
    what = f"the program ended with status {code}; its calls fitted, and no rank raised"
    return Verdict(Ending.PARTIAL, what, lines=verdict.lines)


def _with_notes(verdict: Verdict, job: Job) -> Verdict:
    notes = job.notes()
    if verdict.kind is Ending.UNREACHABLE and (cut_off := _without_network()):
        notes.append(cut_off)
    if not notes:
        return verdict
    kind = Ending.PARTIAL if verdict.kind is Ending.OK else verdict.kind
    return dataclasses.replace(verdict, kind=kind, notes=(*verdict.notes, *notes))


def _without_network() -> str | None:
    """Whether it is this machine that nobody can reach."""
    stats = {name: one for name, one in psutil.net_if_stats().items() if name != "lo"}
    if not stats or any(one.isup for one in stats.values()):
        return None
    return f"{socket.gethostname()} itself has no network: look at the cable of {', '.join(stats)}"
