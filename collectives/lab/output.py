"""Follow commands on several machines: read their lines, wait until they end, or end them."""

import contextlib
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from itertools import product

import psutil

OnLine = Callable[[str, str, str], None]

# Which command a process belongs to: all that it starts inherit this variable.
MARK = "COLLECTIVES_LAB_COMMAND"

_STREAMS = ("stdout", "stderr")


def follow(
    processes: dict[str, subprocess.Popen], timeout: float | None, on_line: OnLine | None
) -> list[subprocess.CompletedProcess]:
    """Wait for these processes, which are named after their machines; see Lab.run.

    If this raises, the caller must kill the processes (see `end`); the threads that read their
    lines then stop.
    """
    lines: dict[tuple[str, str], list[str]] = {key: [] for key in product(processes, _STREAMS)}
    running = [*lines, *((name, "exit") for name in processes)]
    ended: queue.SimpleQueue = queue.SimpleQueue()
    given_up = threading.Event()

    def read(name: str, stream: str) -> None:
        for line in getattr(processes[name], stream):
            lines[name, stream].append(line)
            if on_line is not None and not given_up.is_set():
                on_line(name, stream, line)

    def watch(name: str, what: str) -> None:
        try:
            processes[name].wait() if what == "exit" else read(name, what)
            ended.put(((name, what), None))
        except Exception as error:
            ended.put(((name, what), error))

    for source in running:
        threading.Thread(target=watch, args=source, daemon=True).start()
    try:
        _wait_for(running, ended, timeout)
    finally:
        given_up.set()
    return [
        subprocess.CompletedProcess(
            process.args,
            process.returncode,
            *("".join(lines[name, stream]) for stream in _STREAMS),
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


def wait(process: subprocess.Popen, who: str, limit: float) -> None:
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{who} did not end within {limit:g} s") from None


def end(processes: Collection[subprocess.Popen], mark: str, limit: float) -> None:
    """Kill commands with all that has come from them, also what has become nobody's child.

    Raises TimeoutError if some of it is still there after `limit` seconds.
    """
    # subtle: the first processes only wait for the others. If they were killed before them, their
    # children would be the real machine's first process's to bury, which may take seconds.
    first = {process.pid for process in processes}
    deadline = time.monotonic() + limit
    clean_scans = 0
    # A process that is just replacing its program has no environment for a moment.
    while clean_scans < 2:
        alive = [process for process in processes if process.poll() is None]
        family = [
            process for process in _marked(mark) | _children(alive) if process.pid not in first
        ]
        if (family or alive) and time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in family or alive)
            raise TimeoutError(f"killed, but not gone after {limit:g} s: process {pids}")
        for process in family or alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        clean_scans = 0 if family or alive else clean_scans + 1
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
