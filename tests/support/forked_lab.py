"""A lab whose machines are forks of one process that has imported torch: for programs that only
meet at a store. A run costs a tenth of one on machines. All of them share the network of this one.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch.distributed as dist
from processes import free_port

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch.distributed"])  # a server of `launch` has it, too


class ForkedLab:
    """What those programs need of `Lab`."""

    def __init__(self, nodes: int):
        self.nodes, self.programs = range(nodes), dict[str, str]()
        self.ports = {"29400": free_port(), "29600 + size": free_port()}
        self.processes: dict = {}
        self.without_power: set[int] = set()

    def __enter__(self) -> "ForkedLab":
        self.folder = tempfile.TemporaryDirectory()
        return self

    def __exit__(self, *error) -> None:
        for process in self.processes.values():
            process.kill()
        self.folder.cleanup()

    def open_store(self) -> None:
        """On login, as `elastic_job.open_store` does."""
        options = {"is_master": True, "wait_for_workers": False}
        self.store = dist.TCPStore("127.0.0.1", self.ports["29400"], **options)

    def save(self, name: str, text: str) -> None:
        for place in ('"node0"', '"login"'):
            text = text.replace(place, '"127.0.0.1"')
        for port, free in self.ports.items():
            text = text.replace(port, str(free))
        text = text.replace("seconds=60", "seconds=15")  # a dead rank is waited for so long
        self.programs[f"/run/shared/{name}"] = text

    def power_off(self, node: int) -> None:
        """A process that is stopped closes no connection either."""
        os.kill(self.processes[node].pid, signal.SIGSTOP)
        self.without_power.add(node)

    def run(
        self,
        command: str | list[str],
        on: Iterable[int] | None = None,
        on_line: Callable[[str, str, str], None] = lambda *_: None,
    ) -> list[subprocess.CompletedProcess]:
        python, name, *arguments = command.split() if isinstance(command, str) else command
        assert python == "python"
        self.processes, self.without_power = {}, set()
        files = {node: Path(self.folder.name, str(node)) for node in on or self.nodes}
        for node, file in files.items():
            own = [word.replace("{node}", str(node)) for word in arguments]
            process = FORKS.Process(target=_machine, args=(self.programs[name], own, str(file)))
            process.start()
            self.processes[node] = process
        heard, end = dict.fromkeys(files, 0), time.monotonic() + 150
        while self._run() and time.monotonic() < end:
            time.sleep(0.02)
            for node, file in files.items():
                lines = file.read_text().splitlines() if file.exists() else []
                for line in lines[heard[node] :]:
                    on_line(f"node{node}", "stdout", line)
                heard[node] = len(lines)
        for process in self.processes.values():
            process.kill()
            process.join()
        return [
            subprocess.CompletedProcess(
                command,
                self.processes[node].exitcode,
                file.read_text(),
                file.with_suffix(".err").read_text(),
            )
            for node, file in files.items()
        ]

    def _run(self) -> bool:
        """Until all have ended, or a program has raised an error."""
        codes = {node: process.exitcode for node, process in self.processes.items()}
        left = [code for node, code in codes.items() if node not in self.without_power]
        return None in left and 1 not in left


def _machine(program: str, arguments: list[str], file: str) -> None:
    for stream, path in ((1, file), (2, f"{file}.err")):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    sys.argv = ["program", *arguments]
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})
