"""`collectives diagnose`: a command in; its own output and exit status out, or what went wrong with it."""

import json
import math
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

STATUSES = (
    "Exit status: the program's own where nothing is wrong, else 1 (the report is on stderr), 2 bad usage, 130 Ctrl-C. "
    "A program that computes for long is called slow, and goes on until --timeout."
)

_ENDINGS = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}


def diagnose(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND ...", help="As in -- torchrun --nproc-per-node 4 train.py"
        ),
    ],
    hang_after: Annotated[
        float, typer.Option(metavar="S", help="Nothing moves for so many seconds: it hangs.")
    ] = 30.0,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", help="End the program after so many seconds; no limit."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the verdict there.")
    ] = None,
) -> None:
    """Run any program of torch.distributed, unchanged, and say which rank and which line it fails or hangs at.

    Every call of every rank is noted and compared with the other ranks' while the program runs.
    """
    from collectives.diagnosis import run as diagnosing
    from collectives.diagnosis.rules import hints

    try:
        for name, seconds in (("--hang-after", hang_after), ("--timeout", timeout)):
            if seconds is not None and not 0 < seconds < math.inf:
                raise ValueError(f"{name} {seconds:g} is not a time: use seconds, more than 0.")
        if json_file is not None and not json_file.absolute().parent.is_dir():
            raise ValueError(
                f"--json {json_file}: there is no folder {json_file.absolute().parent}."
            )
        for number in _ENDINGS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, _end)
        if json_file is not None:
            _write(json_file, "")
        verdict, status = diagnosing.run(
            command, hang_after, timeout, lambda text: print(text, file=sys.stderr)
        )
    except ValueError as error:
        print(f"collectives diagnose: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if verdict.kind != "ok":
        print(verdict.says, file=sys.stderr)
    for risk, cure in hints.write(verdict.hints):
        print(f"{risk}  {cure}", file=sys.stderr)
    if json_file is not None:
        told = diagnosing.as_json(verdict, command, status)
        try:
            _write(json_file, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
        except ValueError as error:
            print(f"collectives diagnose: {error}", file=sys.stderr)
            raise typer.Exit(status or 2) from None
    raise typer.Exit(status)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--json {file} cannot be written: {error.strerror}.") from None


def _end(number: int, frame) -> None:
    """Asked to end, we end the program first; once is enough."""
    for one in _ENDINGS:
        signal.signal(one, signal.SIG_IGN)
    sys.exit(128 + number)
