"""What a rank forks ends with it, and a launch that meets a broken machine ends with a sentence."""

import contextlib
import os
import pty
import shlex
import sys
import tempfile
import time

import psutil
import pytest
from processes import finished, is_alive, wait_until

from collectives import launch
from collectives.lab import available
from collectives.launcher.child import EXIT_TIMEOUT

NEEDS_A_NAMESPACE = pytest.mark.skipif(
    available.missing() is not None, reason="takes something away from a program, as a lab does"
)


@pytest.mark.parametrize("sends", [True, False], ids=["goes_on_as_if_a_rank", "sleeps"])
def test_what_a_rank_forks_sends_no_result_and_ends_with_the_rank(sends, tmp_path):
    def forks(rank, world_size, device):
        pid = os.fork()
        if pid == 0 and not sends:
            time.sleep(100)
        elif pid == 0:
            time.sleep(0.1)
        else:
            (tmp_path / str(rank)).write_text(str(pid))
            time.sleep(0.5)
        return rank, pid == 0

    assert launch(forks, 2) == [(0, False), (1, False)]
    pids = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert len(pids) == 2
    copies = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    wait_until(lambda: not any(map(is_alive, copies)), 5)


def test_a_debug_level_that_torch_does_not_know_is_a_bad_argument(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "junk")
    with pytest.raises(ValueError, match="TORCH_DISTRIBUTED_DEBUG=junk is not known to torch"):
        launch(lambda *_: None, 1)


# The script of a caller without a main guard, whose rank reads as a debugger does.
IN_A_TERMINAL = """
from collectives import launch
print("the script runs")
class Read(tuple): pass
def read(*_):
    return Read([open("/dev/stdin").readline()])
print(launch(read, 1))
"""


def test_a_script_in_a_terminal_runs_once_and_its_rank_can_read_from_there(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(IN_A_TERMINAL)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, script])
    os.write(terminal, b"next\n")
    said = b""
    with contextlib.suppress(OSError):  # EIO: everybody has closed the terminal
        while data := os.read(terminal, 1000):
            said += data
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0
    assert sorted(said.decode().splitlines()) == [r"[('next\n',)]", "next", "the script runs"]


# Programs that print what becomes of each launch, and then end, whatever happened to them.

PROLOGUE = """
import os, shutil, subprocess, sys, tempfile, threading, time
import psutil
from collectives import LaunchError, launch

def rank_of(rank, *_):
    return rank

def outcome(*args, **options):
    try:
        return launch(*args, **options)
    except (LaunchError, ValueError) as error:
        return str(error).splitlines()[0]
"""

LATE = """
from collectives.launcher import child
from multiprocessing.process import BaseProcess

delay, patience = map(float, sys.argv[1:])
start, late = BaseProcess.start, threading.Event()
def start_late(process):
    if process.name.endswith("-1"):
        time.sleep(delay)
    start(process)
    if process.name.endswith("-1"):
        late.pid = process.pid
        late.set()
launch(rank_of, 2)
before = child.EXIT_TIMEOUT
child.EXIT_TIMEOUT, BaseProcess.start = patience, start_late
print(outcome(rank_of, 2, timeout=2))  # also on a busy machine rank 0 has returned then
late.wait(delay + 5)  # on a busy machine it may never begin
child.EXIT_TIMEOUT, BaseProcess.start = before, start
"""
LATE_SAID = "rank 1 hung: not every rank had returned after 2 s"

# It connects to the fork server, and then has no descriptor left to send. Then others tidy up.
TROUBLE = """
import multiprocessing.util, resource
server = sorted(one.pid for one in psutil.Process().children())
used, limits = psutil.Process().num_fds(), resource.getrlimit(resource.RLIMIT_NOFILE)
said = set()
for spare in range(6, 14):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, limits[1]))
    try:
        said.add("open files" in str(outcome(rank_of, 1, diagnose=False)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print(said >= {True}, outcome(rank_of, 2), sorted(one.pid for one in psutil.Process().children()) == server)
shutil.rmtree(multiprocessing.util.get_temp_dir())
print(outcome(rank_of, 2))
"""

# Without loopback and /proc; then with one of them; then without room for files.
BARE = """
def change(command):
    subprocess.run(command, shell=True, check=True)

print(outcome(rank_of, 2))
change("ip link set lo up")
print(outcome(rank_of, 2))
change("umount /proc; ip link set lo down")
print(outcome(rank_of, 2, backend="by_hand"))
tempfile.tempdir = tempfile.mkdtemp()
change(f"mount -t tmpfs -o size=1m none {tempfile.tempdir}")
print(outcome(rank_of, 2, backend="by_hand"))
print("No space left" in outcome(rank_of, 2, backend="by_hand", diagnose=True))
change(f"umount {tempfile.tempdir}; rmdir {tempfile.tempdir}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the environment of processes")
@pytest.mark.parametrize(
    ("body", "arguments", "before", "said"),
    [
        pytest.param(
            LATE + TROUBLE,
            "3 0.3",
            "",
            [LATE_SAID, "True [0, 1] True", "[0, 1]"],
            id="late_start_then_no_descriptors_then_a_temporary_folder_tidied_up",
        ),
        *(
            pytest.param(
                LATE,
                f"{delay} {EXIT_TIMEOUT}",
                "",
                [LATE_SAID],
                id=f"late_start_{delay}s",
                marks=pytest.mark.slow,
            )
            for delay in (7.5, 12.5)
        ),
        pytest.param(
            BARE,
            "",
            "unshare -rmn sh -c 'mount -t tmpfs none /proc && exec \"$@\"' sh",
            [
                "gloo connects the ranks over loopback, which is down: "
                "`ip link set lo up` starts it.",
                *["[0, 1]"] * 3,
                "True",
            ],
            id="no_loopback_no_proc_no_room",
            marks=NEEDS_A_NAMESPACE,
        ),
    ],
)
def test_a_program_in_trouble_says_so_and_ends_with_all_that_it_started(
    body, arguments, before, said, tmp_path
):
    program = tmp_path / "program.py"
    program.write_text(PROLOGUE + body)
    with tempfile.TemporaryDirectory() as folder:  # a short path: that of a socket is limited
        command = [*shlex.split(before), sys.executable, program, *arguments.split()]
        done = finished(command, 300, {"TMPDIR": folder})
        assert (done.stdout.splitlines(), done.stderr) == (said, "")
        wait_until(lambda: not of_environment("TMPDIR", folder), 5)
        assert os.listdir(folder) == []


def of_environment(name: str, value: str) -> list[psutil.Process]:
    """The living processes that were started with this variable."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value and is_alive(process):
                found.append(process)
        except psutil.Error:
            pass
    return found
