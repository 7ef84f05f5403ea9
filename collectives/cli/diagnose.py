"""`collectives diagnose`: run a program, and say which rank hangs or fails, and at which line."""

import json
import math
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from collectives.course.console import print_text, write_file
from collectives.recording.ending import Ending

STATUSES = (
    "Exit status: the program's own where nothing is wrong, else 1 (the report is on stderr), "
    "2 bad usage, 130 Ctrl-C. "
    "A program that computes for long is called slow, and goes on until --timeout."
)

# SIGHUP: the terminal was closed. Windows has none.
_END_SIGNALS = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}


def diagnose(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND ...", help="As in -- torchrun --nproc-per-node 4 train.py"
        ),
    ] = None,
    hang_after: Annotated[
        float, typer.Option(metavar="S", help="Report a hang once nothing has moved for S seconds.")
    ] = 30.0,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", help="End the program after S seconds; no limit."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the verdict there.")
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE ...",
            help="Run nothing: explain this log (-: standard input), or Flight Recorder dumps.",
        ),
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option(
            metavar="PID",
            help="Run nothing: say where the ranks of a job stand that runs already, below this "
            "process (of torchrun, mpiexec or the script). Needs py-spy.",
        ),
    ] = None,
    between: Annotated[
        float, typer.Option(metavar="S", help="With --pid: look twice, S seconds apart.")
    ] = 2.0,
) -> int:
    """Run any program of torch.distributed, unchanged; name the rank and line that fails or hangs.

    Every call of every rank is noted and compared with the other ranks' while the program runs.
    """
    from collectives.backends import claims
    from collectives.diagnosis import run as diagnosing
    from collectives.diagnosis.log.report import report
    from collectives.diagnosis.rules import hints

    status = 2
    try:
        if log is not None:
            if timeout is not None or json_file is not None:
                raise ValueError("--log runs nothing: --timeout and --json go with a command.")
            text, is_well = report([log, *(command or [])])  # of log*, the shell makes several
            print_text(text)
            return 0 if is_well else 1
        if pid is not None:
            if command or timeout is not None:
                raise ValueError("--pid runs nothing: a command and --timeout do not go with it.")
            return _attach(pid, between, json_file)
        if not command:
            raise ValueError("name a command, as in -- torchrun train.py, or --log FILE.")
        _check(hang_after, timeout)
        for number in _END_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, _exit_once)
        if json_file is not None:  # the verdict of an earlier run is none of this one
            write_file(json_file, "")
        verdict, status = diagnosing.run(
            command,
            hang_after,
            timeout,
            lambda text: print_text(text, stderr=True),
            wrong_with_gaps=claims.wrong_with_gaps,
        )
        if verdict.kind is not Ending.OK:
            print_text(verdict.says, stderr=True)
        for risk, cure in hints.write(verdict.hints):
            print_text(f"{risk}  {cure}", stderr=True)
        if json_file is not None:
            document = diagnosing.as_json(verdict, command, status)
            text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            write_file(json_file, text)
    except ValueError as error:
        print_text(f"collectives diagnose: {error}", stderr=True)
        return status or 2
    return status


def _attach(pid: int, between: float, json_file: Path | None) -> int:
    """Where the ranks stand that run already. Statuses: 1 somebody waits, 0 nobody does."""
    from collectives.diagnosis.attach import look, report

    _check(between, None)
    if json_file is not None:
        write_file(json_file, "")
    document = look.look(pid, between)
    waits = report.somebody_waits([document])
    text = report.write([document])
    print_text(text)
    if json_file is not None:
        document |= {"waits": waits, "says": text, "status": int(waits)}
        write_file(json_file, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return int(waits)


def _check(hang_after: float, timeout: float | None) -> None:
    for name, seconds in (("--hang-after", hang_after), ("--timeout", timeout)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"{name} {seconds:g} is not a time: use seconds, more than 0.")


def _exit_once(number: int, frame) -> None:
    """Exit, which ends the program that is diagnosed. Further signals change nothing."""
    for ignored in _END_SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    sys.exit(128 + number)
