"""A lab: machines on this one, each with its own address, host name, files and processes."""

import contextlib
import os
import secrets
import select
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from collectives.backends.availability import Unavailable
from collectives.lab import available, link, output, relay

_HERE = Path(__file__).parent

# The network of every lab: nothing outside of a lab can see it, so that labs do not collide.
_NETWORK = "10.13.0."
_LOGIN = 254
_MOST = 64

# Seconds that the lab gets for what takes milliseconds.
LIMIT = 20.0


def name(node: int | str) -> str:
    return node if node == "login" else f"node{node}"


def address(node: int) -> str:
    return f"{_NETWORK}{node + 1}"


class Lab:
    """`machines` machines and a switch between them, in namespaces that end with the `with` block.

    Machine k is called node{k}; `login`, the host at the switch, runs none of the commands that
    are for every machine. `rate` ("200mbit") holds for each direction of a machine's cable, `delay`
    ("2ms") from one machine to another, and `loss` ("1%") for what reaches a machine.

    All machines see the files of this one. /run/disk (64 MiB, TMPDIR) and /dev/shm are a machine's
    own, /run/shared is common to all of them. No route leads out. Raises Unavailable, a
    ValueError, where there can be no lab, and ValueError for a rate, delay or loss that is none.

    >>> with Lab(2, rate="200mbit") as lab:  # doctest: +SKIP
    ...     lab.power_off(1)
    """

    def __init__(
        self,
        machines: int,
        *,
        rate: str | None = None,
        delay: str | None = None,
        loss: str | None = None,
    ):
        if not 1 <= machines <= _MOST:
            raise ValueError(f"{machines} machines: a lab has 1 to {_MOST}.")
        self.nodes = range(machines)
        # What every command gets besides the environment of this process.
        self.environ = {
            # torchrun and python are those of this process.
            "PATH": f"{Path(sys.executable).parent}:{available.search_path()}",
            # All machines share the cores of this one.
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "TMPDIR": "/run/disk",
            # mpiexec on login starts its ranks with this instead of ssh.
            "HYDRA_LAUNCHER": "rsh",
            "HYDRA_LAUNCHER_EXEC": str(_HERE / "rsh.sh"),
        }
        self._cable = link.words(rate, delay, loss)
        self._has_relays = delay is not None
        self._switch: Any = None  # a Popen, while the lab runs
        self._machines: dict[int, Any] = {}
        self._started: dict[subprocess.Popen, str] = {}  # with the mark of its command

    def __enter__(self) -> "Lab":
        if reason := available.missing():
            raise Unavailable(reason)
        try:
            self._start_switch()
            self.power_on(*self.nodes)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the lab; with them go its networks, mounts and files."""
        if self._switch is None:
            return
        switch, self._switch = self._switch, None
        # Its child is the first process of the namespace that holds all others: they end with it.
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(switch.pid).children():
                child.kill()
        for process in (*self._started, *self._machines.values(), switch):
            with contextlib.suppress(OSError):
                process.stdin and process.stdin.close()
            output.wait(process, "the lab", LIMIT)

    def start(self, node: int | str, command: str | list[str], **options) -> subprocess.Popen:
        """Start a command on a machine, or on "login", in the current folder.

        A command in one string is split into words as a shell does. In the words {node} stands for
        the machine's number. `options` go to Popen.
        """
        return self._start(node, command, secrets.token_hex(8), options)

    def _start(
        self, node: int | str, command: str | list[str], mark: str, options: dict
    ) -> subprocess.Popen:
        words = shlex.split(command) if isinstance(command, str) else map(str, command)
        words = [word.replace("{node}", str(node)) for word in words]
        where = [] if node == "login" else [str(_HERE / "enter.sh"), name(node)]
        environ = {
            **(options.get("env") or os.environ),
            **self.environ,
            output.MARK: mark,
            "HOSTNAME": name(node),
            "PS1": f"{name(node)}$ ",
        }
        words = [*self._enter_switch(), *where, *words]
        process = subprocess.Popen(words, **{**options, "env": environ})
        self._started[process] = mark
        return process

    def run(
        self,
        command: str | list[str],
        on: Iterable[int | str] | None = None,
        timeout: float | None = 150.0,
        on_line: Callable[[str, str, str], None] | None = None,
    ) -> list[subprocess.CompletedProcess]:
        """Run a command on every machine at once, or on those of `on`; how it ended on each.

        `on_line` is called with the machine's name, "stdout" or "stderr", and each line. After
        `timeout` seconds, or if `on_line` raises, the command is killed on every machine, with all
        that it has started. Raises TimeoutError, which names the machines that were not ready.
        """
        options: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        options |= {"stdin": subprocess.DEVNULL, "text": True, "errors": "replace"}
        mark, processes = secrets.token_hex(8), {}
        try:
            for node in self.nodes if on is None else on:
                processes[name(node)] = self._start(node, command, mark, options)
            return output.follow(processes, timeout, on_line)
        except BaseException:
            output.end(processes.values(), mark, LIMIT)
            raise
        finally:
            for process in processes.values():
                del self._started[process]

    def kill(self, process: subprocess.Popen) -> None:
        """End a command that `start` has started, and all that it has started."""
        output.end([process], self._started[process], LIMIT)

    def save(self, name: str, text: str) -> None:
        """Write a file into /run/shared, where all machines see it."""
        Path(f"/proc/{self._switch.pid}/root/run/shared", name).write_text(text, encoding="utf-8")

    def unplug(self, node: int) -> None:
        """Pull the machine's cable: nothing gets through, and nobody is told."""
        self._in_switch("ip", "link", "set", name(node), "down")

    def plug(self, node: int) -> None:
        self._in_switch("ip", "link", "set", name(node), "up")

    def power_off(self, node: int) -> None:
        """End a machine as a power cut does: its peers hear nothing of it."""
        # The cable goes first. Otherwise the kernel would close the connections of what it kills.
        self._in_switch("ip", "link", "delete", name(node))
        if self._has_relays:
            self._in_switch("ip", "link", "delete", f"{name(node)}-port")
        self._in_switch("rm", f"/run/lab/{name(node)}")
        machine = self._machines.pop(node)
        machine.stdin.close()
        output.wait(machine, name(node), LIMIT)

    def power_on(self, *nodes: int) -> None:
        """Start machines that are off, with empty disks. All start at the same time."""
        for node in nodes:
            self._machines[node] = self._popen([*self._enter_switch(), *self._machine(node)])
        for node in nodes:
            self._wait_until_ready(self._machines[node], name(node))

    def close_port(self, node: int, ports: int | str, reset: bool = False) -> None:
        """Drop new connections to these TCP ports of the machine: 29500, or "1024-29499".

        With `reset` they are refused at once. Connections that exist go on.
        """
        answer = "reject with tcp reset" if reset else "drop"
        rules = (
            "table inet ports { chain input { type filter hook input priority 0;\n"
            f"iif eth0 tcp dport {ports} tcp flags & (syn | ack) == syn {answer}\n}}\n}}"
        )
        self._check(node, ["nft", rules])

    def fill_disk(self, node: int, folder: str = "/run/disk") -> None:
        """Fill the machine's own disk, or its /dev/shm, with a file named `full`."""
        self.run(["sh", "-c", 'cat /dev/zero > "$0/full"', folder], on=[node])

    def _in_switch(self, *command: str) -> None:
        self._check("login", list(command))

    def _check(self, node: int | str, command: list[str]) -> None:
        (done,) = self.run(command, on=[node], timeout=LIMIT)
        if done.returncode != 0:
            raise ValueError(done.stderr.strip())

    def _start_switch(self) -> None:
        self._switch = self._popen(
            [
                *("unshare", *available.user_flags(), "-nmuip", "--fork", "--mount-proc"),
                *(str(_HERE / "switch.sh"), f"{_NETWORK}{_LOGIN}"),
            ]
        )
        table = ["127.0.0.1 localhost", f"{_NETWORK}{_LOGIN} login"]
        table += [f"{address(node)} {name(node)}" for node in self.nodes]
        self._switch.stdin.write("\n".join([*table, "", ""]))
        self._switch.stdin.flush()
        self._wait_until_ready(self._switch, "the switch")

    def _machine(self, node: int) -> list[str]:
        """The command that lays the cable of a machine and starts the machine."""
        words = [name(node), address(node), *self._cable, sys.executable, relay.__file__]
        return [str(_HERE / "cable.sh"), *words]

    def _enter_switch(self) -> list[str]:
        pid = self._switch.pid
        user = ["-U", "--preserve-credentials"] if available.user_flags() else []
        return [
            *("nsenter", "-t", str(pid), *user, "-m", "-u", "-i", "-n"),
            *(f"--pid=/proc/{pid}/ns/pid_for_children", f"--wdns={os.getcwd()}"),
            *("setpriv", "--pdeathsig", "KILL"),
        ]

    def _popen(self, command: list[str]) -> subprocess.Popen:
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environ = os.environ | {"PATH": available.search_path()}
        return subprocess.Popen(command, text=True, env=environ, **pipes)

    def _wait_until_ready(self, process: Any, who: str) -> None:
        # subtle: no read without a limit. What hangs may be a grandchild that keeps the pipes open.
        if not select.select([process.stdout], [], [], LIMIT)[0]:
            raise Unavailable(f"{who} of the lab did not start within {LIMIT:g} s.")
        if process.stdout.readline() != "ready\n":
            raise Unavailable(f"{who} of the lab did not start: {process.stderr.read().strip()}")
        process.stdout.close()
        process.stderr.close()
