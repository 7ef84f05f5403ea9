"""Follow commands on several machines: hear their lines, wait until they end, or end them."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable

import psutil

Tell = Callable[[str, str, str], None]


def follow(
    processes: dict[str, subprocess.Popen], timeout: float | None, tell: Tell | None
) -> list[subprocess.CompletedProcess]:
    """Wait for these processes, which are named after their machines; see Lab.run."""
    deadline = None if timeout is None else time.monotonic() + timeout
    lines = {(name, stream): [] for name in processes for stream in ("stdout", "stderr")}

    def read(name: str, stream: str) -> None:
        for line in getattr(processes[name], stream):
            lines[name, stream].append(line)
            if tell is not None:
                tell(name, stream, line)

    readers = [threading.Thread(target=read, args=key, daemon=True) for key in lines]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        late = [name for (name, _), one in zip(lines, readers, strict=True) if one.is_alive()]
        if late:
            names = ", ".join(dict.fromkeys(late))
            raise TimeoutError(f"not ready after {timeout:g} s: {names}")
        return [
            subprocess.CompletedProcess(
                process.args,
                process.wait(),
                "".join(lines[name, "stdout"]),
                "".join(lines[name, "stderr"]),
            )
            for name, process in processes.items()
        ]
    finally:
        for process in processes.values():
            end(process)
        for reader in readers:
            reader.join()


def end(process: subprocess.Popen) -> None:
    """Kill a command with all that descends from it."""
    # subtle: the first process only waits for the others. If it were killed before them, its child
    # would be the real machine's first process's to bury, which may take seconds.
    while process.poll() is None:
        try:
            family = psutil.Process(process.pid).children(recursive=True)
            for one in family or [process]:
                one.kill()
        except psutil.NoSuchProcess:
            continue
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
