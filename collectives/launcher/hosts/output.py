"""Follow commands on several machines: hear their lines, wait until they end, or end them."""

import contextlib
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Collection

import psutil

Tell = Callable[[str, str, str], None]

# Which command a process belongs to: all that it starts inherit this variable.
MARK = "COLLECTIVES_LAB_COMMAND"


def follow(
    processes: dict[str, subprocess.Popen], timeout: float | None, tell: Tell | None
) -> list[subprocess.CompletedProcess]:
    """Wait for these processes, which are named after their machines; see Lab.run.

    Whoever gets an exception ends them, and then their lines.
    """
    lines = {(name, stream): [] for name in processes for stream in ("stdout", "stderr")}
    running = [*lines, *((name, "exit") for name in processes)]
    ended = queue.SimpleQueue()
    given_up = threading.Event()

    def read(name: str, stream: str) -> None:
        for line in getattr(processes[name], stream):
            lines[name, stream].append(line)
            if tell is not None and not given_up.is_set():
                tell(name, stream, line)

    def watch(name: str, what: str) -> None:
        try:
            processes[name].wait() if what == "exit" else read(name, what)
            ended.put(((name, what), None))
        except Exception as error:
            ended.put(((name, what), error))

    for one in running:
        threading.Thread(target=watch, args=one, daemon=True).start()
    try:
        _wait_for(running, ended, timeout)
    finally:
        given_up.set()
    return [
        subprocess.CompletedProcess(
            process.args,
            process.returncode,
            *("".join(lines[name, stream]) for stream in ("stdout", "stderr")),
        )
        for name, process in processes.items()
    ]


def _wait_for(
    running: list[tuple[str, str]], ended: queue.SimpleQueue, timeout: float | None
) -> None:
    """Wait until all of these have ended; raise the first error of one, or TimeoutError."""
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        while running:
            one, error = ended.get(timeout=deadline and max(0.0, deadline - time.monotonic()))
            if error is not None:
                raise error
            running.remove(one)
    except queue.Empty:
        names = ", ".join(dict.fromkeys(name for name, _ in running))
        raise TimeoutError(f"not ready after {timeout:g} s: {names}") from None


def end(processes: Collection[subprocess.Popen], mark: str) -> None:
    """Kill commands with all that has come from them, also what has become nobody's child."""
    # subtle: the first processes only wait for the others. If they were killed before them, their
    # children would be the real machine's first process's to bury, which may take seconds.
    first = {process.pid for process in processes}
    calm = 0
    # A process that is just replacing its program has no environment for a moment.
    while calm < 2:
        alive = [process for process in processes if process.poll() is None]
        family = [one for one in _marked(mark) | _children(alive) if one.pid not in first]
        for one in family or alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        calm = 0 if family or alive else calm + 1
        time.sleep(0.01)


def _marked(mark: str) -> set[psutil.Process]:
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.add(process)
    return found


def _children(processes: Collection[subprocess.Popen]) -> set[psutil.Process]:
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.update(psutil.Process(process.pid).children(recursive=True))
    return found
