"""A launch that cannot open what it needs says so in a sentence, and leaves nothing open."""

import gc
import os
import sys
import tempfile
import threading
import time

import psutil
import pytest
from processes import finished

from collectives import LaunchError, launch
from collectives.backends import availability
from collectives.launcher.child import Child

BACKENDS = ["gloo"]
if availability.missing_for_mpi() is None:
    BACKENDS.append("mpi")


def works(rank, world_size, device):
    return rank


def test_a_launch_that_finds_no_free_descriptors_says_so_and_gives_back_what_it_opened():
    import resource

    launch(works, 2, backend="by_hand")
    gc.collect()  # What the tests before this one left must not be closed in the middle.
    used = psutil.Process().num_fds(), threading.active_count()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used[0] + 30, before[1]))
    try:
        for backend in BACKENDS:
            with pytest.raises(LaunchError, match=r"could not be started .OSError: .* open files"):
                launch(works, 20, backend=backend, diagnose=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert psutil.Process().num_fds() == used[0]
    assert threading.active_count() <= used[1]


WITHOUT_FOLDER = """
import os, psutil, shutil, sys, tempfile, threading
from collectives import LaunchError, launch

backend, folder = sys.argv[1:]
used = []
for _ in range(4):
    try:
        print(launch(lambda rank, *_: rank, 2, backend=backend))
    except LaunchError as error:
        print(str(error).splitlines()[0])
    shutil.rmtree(folder, ignore_errors=True)
    # Of Python's threads: the system may count one that has been joined for a moment more.
    used.append((psutil.Process().num_fds(), threading.active_count()))
print(used[2] == used[-1])  # the first failure may start a thread that stays
"""


@pytest.mark.parametrize(
    ("backend", "has_gone"),
    [
        ("gloo", True),
        *(pytest.param(BACKENDS[-1], gone, marks=pytest.mark.slow) for gone in (True, False)),
    ],
)
def test_a_temporary_folder_without_a_fork_server_is_named_and_nothing_stays_open(
    backend, has_gone
):
    with tempfile.TemporaryDirectory() as short:
        folder = os.path.join(short, "x" * (10 if has_gone else 100))
        os.mkdir(folder)
        command = [sys.executable, "-c", WITHOUT_FOLDER, backend, folder]
        done = finished(command, 200, {"TMPDIR": folder})
    first, *others, nothing_is_left = done.stdout.splitlines() or [""] * 2
    assert (len(set(others)), nothing_is_left) == (1, "True"), done.stderr
    for failure in others[:1] if has_gone else (first, others[0]):
        assert "rank 0 died: its process could not be started" in failure
        assert failure.endswith(f"TMPDIR: {folder}")
    assert has_gone == (first == "[0, 1]")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_the_launcher_that_dies_does_not_outlast_the_time_limit(monkeypatch):
    monkeypatch.setattr(Child, "_report_outcome", lambda child, message: sys.exit())
    begin = time.monotonic()
    with pytest.raises(LaunchError, match=r"not every rank had returned after 0\.3 s"):
        launch(works, 2, timeout=0.3)
    assert time.monotonic() - begin < 50


# Ctrl-C while the server imports torch; then a server that does not answer.
INTERRUPTED = """
import os, psutil, signal, time
from multiprocessing import forkserver
from collectives import LaunchError, launch
from collectives.launcher.server import start_server

signal.signal(signal.SIGINT, lambda *_: None)
start_server()
server = psutil.Process(forkserver._forkserver._forkserver_pid)
while not any("libtorch" in one.path for one in server.memory_maps()):
    time.sleep(0.005)
os.killpg(0, signal.SIGINT)
print(launch(lambda rank, *_: rank, 2))
server.suspend()
begin = time.monotonic()
try:
    launch(lambda *_: None, 3, timeout=1)
except LaunchError as error:
    print(error.kind, time.monotonic() - begin < 40)
finally:
    server.kill()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs to see what a process has loaded")
@pytest.mark.slow  # it waits for what does not answer
def test_a_fork_server_survives_an_early_ctrl_c_and_a_stuck_one_holds_no_launch_up():
    done = finished([sys.executable, "-c", INTERRUPTED], start_new_session=True)
    assert (done.stdout, done.stderr) == ("[0, 1]\nhung True\n", "")
