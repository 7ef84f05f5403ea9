"""Run one step within its time, and keep what it prints without the names of this machine."""

import contextlib
import getpass
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tools.first_gpu_run.plan import GpuStep

ROOT = Path(__file__).parents[2]
# What a step of a lesson prints: that it is skipped, how its results are known, or how it failed.
FAILED = r"rank \d+ (?:raised|died|hung)|hang|slow|mismatch"
OF_A_LESSON = re.compile(
    rf"^(\w+): (?:(skipped)|(proved|computed|looked up)|{FAILED})", re.MULTILINE
)
# They name nobody, and the first one is a word of this field.
NO_NAMES = {"root", "localhost", "127.0.0.1", "::1", "00:00:00:00:00:00"}
TO_END = 10.0  # seconds, at the end of its time, in which a step may write what it has


@dataclass(frozen=True)
class Ended:
    """How a step ended: `status` is its exit status, or None after its time limit.

    `is_cut`: the minutes were over before its own limit, so it runs again. `lessons`: by name,
    whether each step of a lesson was skipped, passed or failed.
    """

    name: str
    status: int | None
    seconds: float
    is_cut: bool = False
    lessons: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.is_cut:
            return "cut off by the end of the minutes, and runs again"
        return "ran into its limit" if self.status is None else f"exit status {self.status}"


def perform(
    step: GpuStep, left: float, file: Path, hide: Callable[[str], str], library: Path | None = None
) -> Ended:
    """Run a step for at most `left` seconds, and write what it prints as `hide` leaves it.

    `library`: an NCCL that is loaded before the one of torch.
    """
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(_import_path()), "NO_COLOR": "1"}
    environ["PYTHONUNBUFFERED"] = "1"
    if library:
        environ["LD_PRELOAD"] = str(library)
    begin, limit = time.monotonic(), min(step.limit, left)
    status: int | None = None
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environ,
        )
        to_end = min(TO_END, limit / 4)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(limit - to_end)
        finally:  # also after Ctrl-C: the ranks end with the process that started them
            _end(process, to_end)
        output.seek(0)
        printed = output.read()
    shown = " ".join(["python", *step.command[1:]])
    file.write_text(hide(f"$ {shown}\n{printed}"), encoding="utf-8")
    seconds = round(time.monotonic() - begin, 1)
    is_cut = status is None and left < step.limit
    return Ended(step.name, status, seconds, is_cut, of_lessons(printed))


def of_lessons(printed: str) -> dict[str, str]:
    """By name, how each step of a lesson ended, in what a run of lessons prints."""
    found = OF_A_LESSON.findall(printed)
    return {name: skipped or ("passed" if known else "failed") for name, skipped, known in found}


def _import_path() -> list[str]:
    """The repository first: a machine without network cannot install it."""
    return [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]


def _end(process: subprocess.Popen, seconds: float) -> None:
    """SIGINT, after which a launch ends its ranks, and SIGKILL for what is left of the group."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def hiding() -> Callable[[str], str]:
    """A function that takes the names of the machine and its user out of a text, and paths.

    Of a path, the file's name stays, or the part below this checkout or this Python.
    """
    host = socket.gethostname()
    hidden = {
        str(ROOT): "CHECKOUT",
        str(ROOT.resolve()): "CHECKOUT",
        sys.prefix: "PYTHON",
        sys.base_prefix: "PYTHON",
        host: "HOST",
        host.partition(".")[0]: "HOST",  # as NCCL writes it
        getpass.getuser(): "USER",
    }
    hidden |= dict.fromkeys(_addresses(), "ADDRESS")
    told = {text for text in hidden if len(text) > 1} - NO_NAMES
    longest_first = sorted(told, key=len, reverse=True)
    names = re.compile("|".join(rf"(?<!\w){re.escape(text)}(?!\w)" for text in longest_first))
    tops = "|".join(re.escape(one.name) for one in Path("/").iterdir())
    paths = re.compile(rf"(?<![\w/.])/(?:{tops})(?:/[^\s/'\"<>:,;()]+)*")
    return lambda text: paths.sub(_last_part, names.sub(lambda found: hidden[found[0]], text))


def _last_part(path: re.Match[str]) -> str:
    """Of a file, its name. Of a folder nothing, because its name may be a user's."""
    name = path[0].rpartition("/")[2]
    return name if "." in name else "PATH"


def _addresses() -> set[str]:
    """Those of this machine's network interfaces."""
    found = (one.address for interface in psutil.net_if_addrs().values() for one in interface)
    return {
        one.partition("%")[0] for one in found if not one.startswith(("127.", "::1", "00:00:00:00"))
    }
