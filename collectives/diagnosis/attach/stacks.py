"""The stacks of a process that runs, by py-spy: it pauses the process, reads, and lets it go on."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# A process that does not answer a debugger (it waits for a disk) must not hold us. On a very busy
# machine, the symbols of torch's libraries took 20 seconds to read.
_PATIENCE = 60.0


class NoRightError(ValueError):
    """The system does not let us read this process."""


@dataclass(frozen=True)
class StackFrame:
    """One frame, of Python or (native) of C and C++.

    `given` and `locals`: the arguments and the other variables of a Python function, as texts.
    Objects show only their class and address. The variables of a module are not visible.
    """

    file: str
    line: int
    function: str
    given: dict[str, str]
    locals: dict[str, str]
    native: bool = False


@dataclass(frozen=True)
class ThreadStack:
    """The frames are innermost first. `number` is the system's: that of the process, if main."""

    number: int
    name: str
    frames: tuple[StackFrame, ...]


def py_spy() -> Path:
    """The program that was installed beside this package, not one that PATH happens to name."""
    try:
        files = importlib.metadata.files("py-spy") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.stem == "py-spy" and (path := Path(str(file.locate()))).is_file():
            return path.resolve()
    raise ValueError(
        "py-spy reads the stacks, and is not here: "
        f"{sys.executable} -m pip install py-spy, or 'torch-collectives[attach]', brings it."
    )


def read(program: Path, pid: int, native: bool = False) -> list[ThreadStack]:
    """The stacks of all threads that run Python; with `native`, their C and C++ frames, too.

    Raises NoRightError if the system forbids it, ValueError if the process cannot be read: it has
    ended, is no Python program, or starts just now.
    """
    how = ["--native"] if native else []
    if is_stopped(pid):  # py-spy would wake it
        how = ["--nonblocking"]
    command = [str(program), "dump", "--json", "--locals", "--pid", str(pid), *how]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise ValueError(f"it did not let itself be read for {_PATIENCE:g} s") from None
    if done.returncode:
        if re.search(
            r"permission denied|operation not permitted|os error (1|13)\b", done.stderr, re.I
        ):
            raise NoRightError(done.stderr.strip())
        raise ValueError((done.stderr.strip() or "py-spy failed").splitlines()[0])
    return parse(done.stdout)


def parse(text: str) -> list[ThreadStack]:
    """The JSON of `py-spy dump`, as stacks."""
    return [
        ThreadStack(
            one.get("os_thread_id") or 0,
            one.get("thread_name") or "",
            tuple(_own_frames([_frame(frame) for frame in one["frames"]])),
        )
        for one in json.loads(text)
    ]


def _frame(frame: dict) -> StackFrame:
    variables: tuple[dict[str, str], dict[str, str]] = {}, {}
    for one in frame.get("locals") or []:
        if one.get("repr") is not None:
            variables[not one.get("arg")][one["name"]] = one["repr"]
    native = frame.get("module") is not None
    return StackFrame(frame["filename"], frame["line"] or 0, frame["name"], *variables, native)


def _own_frames(frames: list[StackFrame]) -> list[StackFrame]:
    """Without those that a forked child has from its parent, which still lie on its stack."""
    for place, frame in enumerate(frames):
        if frame.function.endswith("_bootstrap") and frame.file.endswith(
            "multiprocessing/process.py"
        ):
            return frames[: place + 1]
    return frames


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds the process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def activity(pid: int, thread: int) -> tuple[int, float] | None:
    """How often a thread has slept and woken, and its seconds of processor time."""
    folder = Path(f"/proc/{pid}/task/{thread}")
    try:
        switches = re.search(
            r"^voluntary_ctxt_switches:\s*(\d+)", (folder / "status").read_text(), re.M
        )
        used = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return int(switches[1]) if switches else 0, sum(map(int, used)) / ticks
