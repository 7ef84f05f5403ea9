"""`collectives lab`: run a command on several machines, which are made on this one."""

import shutil
import signal
import sys
import threading
from typing import Annotated

import typer

from collectives.cli import terminal
from collectives.course.console import print_text

STATUSES = (
    "Exit status: the first that is not 0 of a machine's command, 2 bad usage, "
    "3 there can be no machines here, 124 --timeout, 130 Ctrl-C."
)


def lab(
    machines: Annotated[int, typer.Argument(metavar="N", help="How many: node0, node1, ...")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND ...", help="{node} in it is the machine's number."),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Of each cable, both ways, as in 200mbit.")
    ] = None,
    delay: Annotated[str | None, typer.Option(help="From machine to machine, as in 2ms.")] = None,
    loss: Annotated[str | None, typer.Option(help="Packets that do not arrive, as in 1%.")] = None,
    shell: Annotated[
        str | None,
        typer.Option(metavar="K | login", help="Open a prompt on this machine, or at the switch."),
    ] = None,
    login: Annotated[
        bool, typer.Option("--login", help="Run the command once, at the switch: mpiexec, srun.")
    ] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Start Slurm on the machines before.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="Kill the command after so many seconds.")
    ] = None,
) -> int:
    """Make N machines on this one, and run a command on all of them at once.

    Each has its own address, host name, /etc/hosts, /dev/shm, processes, and a cable to a switch.
    They see the files of this machine, and no network but their own. They end with the command.
    """
    from collectives.lab import slurm as scheduler
    from collectives.lab.lab import Lab

    try:
        prompt = _check(machines, command, shell, timeout is not None or login)
        with Lab(machines, rate=rate, delay=delay, loss=loss) as made:
            if slurm:
                scheduler.start(made)
            if prompt is not None:
                status = _prompt(made, prompt)
            else:
                status = _run(made, command or [], ["login"] if login else None, timeout)
    except ValueError as error:
        return terminal.failed("collectives lab", error)
    except TimeoutError as error:
        print_text(f"collectives lab: {error}", stderr=True)
        return 124
    return status


def _check(
    machines: int, command: list[str] | None, shell: str | None, for_command: bool
) -> int | str | None:
    """Where the prompt is to be; None if there is a command to run."""
    if bool(command) == (shell is not None):
        raise ValueError("write a command after --, or --shell K.")
    if shell is not None and for_command:
        raise ValueError("--timeout and --login are for a command: leave them out with --shell.")
    if shell is None or shell == "login":
        return shell
    if not shell.isdigit() or int(shell) >= machines:
        raise ValueError(f"--shell {shell}: the machines are 0 to {machines - 1}, and login.")
    return int(shell)


def _prompt(lab, node: int | str) -> int:
    process = lab.start(node, ["bash", "--norc"] if shutil.which("bash") else ["sh"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for what runs in the shell
    return _status(process.wait())


def _run(lab, command: list[str], on: list[str] | None, timeout: float | None) -> int:
    lock = threading.Lock()

    def print_line(name: str, stream: str, line: str) -> None:
        with lock:
            print(f"{name}: {line}", end="", file=getattr(sys, stream), flush=True)

    done = lab.run(command, on=on, timeout=timeout, on_line=print_line)
    return next((_status(one.returncode) for one in done if one.returncode != 0), 0)


def _status(returncode: int) -> int:
    """As a shell gives it: 128 and the number of the signal that ended a command."""
    return returncode if returncode >= 0 else 128 - returncode
