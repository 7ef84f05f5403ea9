"""However a world or its caller ends, after 5 s no rank and no file is left."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest
from processes import hear_signals, is_alive, wait_until

PROGRAM = """
import ctypes, os, pathlib, signal, sys, time
import torch
from collectives import LaunchError, launch

folder, one_more_world = pathlib.Path(sys.argv[1]), lambda: launch(lambda rank, *_: rank, 3)

def sleepers(rank, world_size, device):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fork = os.fork()
    if fork == 0:
        time.sleep(60)
    (folder / f"fork-{rank}").write_text(f"{fork}.")
    (folder / f"rank-{rank}").write_text(f"{os.getpid()}.")
    if rank == 0 and sys.platform == "linux":
        ctypes.PyDLL(None).sleep(60)  # keeps the interpreter lock
    time.sleep(60)
"""


class Caller:
    """A program in a session of its own. Its temporary files lie in `folder`."""

    def __init__(self, tmp_path: Path, folder: Path, body: str):
        self.notes, self.folder = tmp_path, folder
        (tmp_path / "program.py").write_text(PROGRAM + textwrap.dedent(body))
        self.process = subprocess.Popen(
            [sys.executable, tmp_path / "program.py", tmp_path],
            env=os.environ | {"TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=hear_signals,
        )

    def ranks(self) -> list[psutil.Process]:
        """The two ranks of `sleepers`, when they sleep, and what they have forked."""

        def written():
            assert self.process.poll() is None, self.process.communicate()
            files = [*self.notes.glob("rank-*"), *self.notes.glob("fork-*")]
            return len(files) == 4 and all(file.read_text().endswith(".") for file in files)

        wait_until(written)
        found = []
        for file in sorted(self.notes.glob("*-?"), reverse=True):
            found.append(psutil.Process(int(file.read_text().strip("."))))
            file.unlink()
        return found


@pytest.fixture
def caller(tmp_path):
    """Start a program. The path of its folder is short: a socket's has at most 107 characters."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        yield lambda body: started.append(Caller(tmp_path, Path(folder), body)) or started[-1]
        for one in started:
            one.process.kill()
            one.process.communicate()


def left_in(folder: Path) -> list[Path]:
    """Without the folder that torch 2.9 makes when it is imported, and cannot remove if killed."""
    return [one for one in folder.iterdir() if not any(one.glob("_remote_module_*"))]


def wait_until_gone(processes) -> None:
    wait_until(lambda: not any(map(is_alive, processes)), 5)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("SIGKILL", "forkserver"),
        pytest.param("SIGTERM", "forkserver", marks=pytest.mark.slow),
        *(pytest.param(f"SIG{end}", "spawn", marks=pytest.mark.slow) for end in ("KILL", "INT")),
    ],
)
def test_no_rank_and_no_file_outlives_the_caller(caller, name, method):
    # Without the fork server, nothing is left that could remove the record of a killed caller.
    record = "calls" if method == "forkserver" else None
    one = caller(f"launch(sleepers, 2, start_method={method!r}, record={record!r})\n")
    ranks = one.ranks()
    helpers = set(psutil.Process(one.process.pid).children(recursive=True)) - set(ranks)
    one.process.send_signal(getattr(signal, name))
    wait_until_gone(ranks)
    one.process.wait(timeout=10)
    wait_until_gone(helpers)  # the server and the resource tracker
    wait_until(lambda: not left_in(one.folder), 5)  # the server tidies up after its parent


SURVIVES = """
try:
    launch(sleepers, 2)
except LaunchError as error:
    print(str(error).splitlines()[0], one_more_world())
try:
    launch(sleepers, 2, record="calls")
except KeyboardInterrupt:
    print("interrupted", one_more_world())
launch(sleepers, 2, record="calls")
"""


def test_a_caller_launches_again_after_its_server_was_killed_and_after_an_interrupt(caller):
    """Until Ctrl-C in a terminal reaches all processes: that gives one traceback."""
    one = caller(SURVIVES)
    ranks = one.ranks()
    ranks[0].parent().kill()
    wait_until_gone(ranks)
    ranks = one.ranks()
    one.process.send_signal(signal.SIGINT)
    wait_until_gone(ranks)
    ranks = one.ranks()
    helpers = set(psutil.Process(one.process.pid).children(recursive=True)) - set(ranks)
    os.killpg(one.process.pid, signal.SIGINT)
    wait_until_gone(ranks)
    out, err = one.process.communicate(timeout=20)
    assert out == (
        "every rank died: the fork server, of which they are forks, "
        "was killed by SIGKILL (signal 9) [0, 1, 2]\ninterrupted [0, 1, 2]\n"
    ), err
    assert (err.count("Traceback"), err[-18:]) == (1, "KeyboardInterrupt\n")
    wait_until_gone(helpers)
    assert left_in(one.folder) == []


HANDLES_SIGINT = """
signal.signal(signal.SIGINT, lambda *_: print("noted", flush=True))
def nap(rank, world_size, device):
    for kind in ("rank", "fork"):
        (folder / f"{kind}-{rank}").write_text(f"{os.getpid()}.")
    time.sleep(2)
    return rank
print(launch(nap, 2))
"""


@pytest.mark.slow
def test_a_caller_with_its_own_sigint_handler_gets_its_results(caller):
    one = caller(HANDLES_SIGINT)
    one.ranks()
    os.killpg(one.process.pid, signal.SIGINT)
    out, err = one.process.communicate(timeout=20)
    assert out == "noted\n[0, 1]\n", err
