"""`collectives check-training`: whether a training script computes on n ranks what one would."""

import json
import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from collectives.backends.availability import Unavailable, gpu_count
from collectives.cli import terminal
from collectives.course.console import print_text, write_file

STATUSES = (
    "Exit status: 0 nothing wrong, 1 something is, 2 bad usage, 3 the script cannot run here, "
    "130 Ctrl-C. The script needs two epochs and a save to be judged as a whole: give it few steps."
)


def check_training(
    script: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- train.py ARGS ...", help="As torchrun gets it."),
    ] = None,
    nproc: Annotated[
        int, typer.Option("--nproc", "-n", min=2, help="Ranks, besides one alone.")
    ] = 2,
    device: Annotated[
        str | None,
        typer.Option(help="cpu hides the GPUs, cuda wants one for each rank."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="Time limit of each of the three starts, in seconds.")
    ] = 120.0,
    again: Annotated[
        str, typer.Option(metavar="ARGS", help="What the start after a save gets besides.")
    ] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the findings there.")
    ] = None,
) -> int:
    """Run a training script, unchanged, on one and on two ranks; name the lines that are wrong.

    Each rank works in a copy of the current folder. The script is stopped after two epochs and a
    save, and started again. docs/your-script.md explains each finding.
    """
    from collectives.own_script import report, run

    try:
        if not script:
            raise ValueError("name your script, as in -- train.py --epochs 2.")
        if not Path(script[0]).is_file():
            raise ValueError(
                f"there is no {script[0]} here: name your script, without python or torchrun, "
                "as in -- train.py --epochs 2."
            )
        if not Path(script[0]).resolve().is_relative_to(Path.cwd()):
            raise ValueError(f"{script[0]} is not below this folder: go to where you start it.")
        if device not in (None, "cpu", "cuda"):
            raise ValueError(f"--device {device}: cpu or cuda.")
        if device == "cuda" and gpu_count() < nproc:
            raise Unavailable(f"{nproc} ranks need {nproc} GPUs, and {gpu_count()} are here.")
        if json_file is not None:
            write_file(json_file, "")
        command = [os.path.relpath(script[0]), *script[1:]]
        seen = run.check(command, nproc, timeout, shlex.split(again), device == "cpu")
        findings = report.judge(seen)
        is_wrong = any(finding.state == "wrong" for finding in findings.values())
        status = int(is_wrong or report.are_apart(seen))
        if not status and (why := report.cannot_run(seen)):
            status = 3
        print_text(f"cannot run here: {why}" if status == 3 else report.write(seen, findings))
        if json_file is not None:
            document = report.as_json(seen, findings, status)
            write_file(json_file, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    except ValueError as error:
        return terminal.failed("collectives check-training", error)
    return status
