"""A lab of machines on this one keeps what it promises, and leaves nothing behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from machines import PYTHON, knock, needs_a_lab, needs_slurm, processes, said, serving, sh
from processes import children, finished, is_alive, wait_until
from repository import ROOT
from typer.testing import CliRunner

from collectives import Lab
from collectives.backends.availability import Unavailable
from collectives.cli import app
from collectives.lab import output, slurm

pytestmark = needs_a_lab
RATE, DELAY = 200e6, 0.002

# One side of a measurement: answer 20 messages of a byte, then count what comes.
ANSWERS = """
import socket, time
server = socket.create_server(("", 5000)); print("listens", flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(20):
    peer.sendall(peer.recv(1))
bits, start = 0, time.monotonic()
while piece := peer.recv(2**20):
    bits += 8 * len(piece)
print(bits / (time.monotonic() - start))
"""
# The other side: the shortest round trip, and 10 MB.
ASKS = """
import socket, time
peer = socket.create_connection(("node0", 5000))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips = []
for _ in range(20):
    start = time.monotonic(); peer.sendall(b"x"); peer.recv(1)
    trips.append(time.monotonic() - start)
print(min(trips))
peer.sendall(bytes(10_000_000))
"""
# Of 4,000 datagrams, how many arrive: counted until none comes for half a second.
COUNTS = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**23)
server.bind(("", 5000)); print("listens", flush=True)
server.recv(100); server.settimeout(0.5); arrived = 1
try:
    while True:
        server.recv(100); arrived += 1
except TimeoutError:
    print(arrived)
"""
SENDS = """
import socket, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(4000):
    out.sendto(b"x", ("node0", 5000))
    if number % 50 == 0: time.sleep(0.002)
"""
# A peer that says a word each tenth of a second, and prints what it hears.
TALKS = """
import socket, threading, time
peer = socket.create_connection(("node1", 5000))
while True:
    peer.sendall(b"x"); time.sleep(0.1)
"""
HEARS = """
import socket
server = socket.create_server(("", 5000)); print("listens", flush=True)
peer, _ = server.accept()
while True:
    try: print(len(peer.recv(100)), flush=True)
    except OSError as error: print(error.strerror, flush=True); break
"""


@pytest.fixture(scope="module")
def lab():
    """Two machines that no test changes for the next one."""
    with Lab(2, rate="200mbit", delay="2ms") as made:
        yield made


@pytest.fixture
def own_lab():
    with Lab(2) as made:
        yield made


def test_each_machine_has_its_own_name_and_address(lab):
    done = lab.run(["sh", "-c", "echo {node}; hostname; hostname -i"])
    assert [one.stdout.split() for one in done] == [
        ["0", "node0", "10.13.0.1"],
        ["1", "node1", "10.13.0.2"],
    ]
    assert said(lab, "login", "hostname") == "login"


def test_each_machine_sees_its_own_processes_alone(lab):
    sleeper = lab.start(1, ["sleep", "60"])
    assert processes(lab, 1, ["cat", "sleep"]) == ["cat", "sleep"]
    assert processes(lab, 0, ["cat"]) == ["cat"]
    lab.kill(sleeper)


def test_each_machine_has_its_own_files_and_its_own_table_of_hosts(lab):
    for folder in ("/dev/shm", "/run/disk"):
        sh(lab, 0, f"touch {folder}/mine")
        assert sh(lab, 0, f"ls {folder}") == "mine"
        assert sh(lab, 1, f"ls {folder}") == ""
        assert not Path(folder, "mine").exists()
    before = Path("/etc/hosts").read_text()
    sh(lab, 0, "echo 127.0.1.1 elsewhere >> /etc/hosts")
    assert sh(lab, 0, "getent hosts elsewhere").split() == ["127.0.1.1", "elsewhere"]
    assert sh(lab, 1, "getent hosts elsewhere || echo unknown") == "unknown"
    assert Path("/etc/hosts").read_text() == before


def test_all_machines_share_one_folder_and_the_current_one(lab):
    lab.save("file", "common\n")
    done = lab.run("sh -c 'cat /run/shared/file; pwd'")
    assert [one.stdout for one in done] == [f"common\n{os.getcwd()}\n"] * 2
    assert not Path("/run/shared").exists()


def test_login_keeps_its_address_when_machines_go():
    """Else nobody would find it for half a minute: the others know the old address."""
    with Lab(3) as lab:
        show = "ip", "-brief", "link", "show", "switch"
        before = said(lab, "login", *show).split()[2]
        for node in lab.nodes:
            lab.power_off(node)
            assert said(lab, "login", *show).split()[2] == before


def test_every_machine_reaches_every_other_by_name(lab):
    with serving(lab, 1):
        assert knock(lab, 0, "node1") == "open"
        assert knock(lab, "login", "node1") == "open"
    assert knock(lab, 0, "node1") == "Connection refused"


def test_no_route_leads_out_of_a_lab(lab):
    routes = sh(lab, 0, "ip route show table all | grep -v ^local | grep -v ^broadcast")
    assert [line.split()[0] for line in routes.splitlines() if "lo" not in line] == ["10.13.0.0/24"]
    assert knock(lab, 0, "192.0.2.1") == "Network is unreachable"


def test_nothing_of_a_lab_reaches_the_real_loopback(lab):
    with socket.create_server(("127.0.0.1", 0)) as real:
        port = real.getsockname()[1]
        assert knock(lab, 0, "127.0.0.1", port) == "Connection refused"


def measured(lab):
    """The rate of a cable, in bits per second, and the round trip, in seconds."""
    with serving(lab, 0, ANSWERS) as server:
        trip = float(said(lab, 1, *PYTHON, ASKS))
        return float(server.stdout.read()), trip


def test_a_cable_has_the_rate_and_the_delay_that_one_asks_for(lab):
    # Other work on this machine only slows the relay down: what counts is the best of some tries.
    for _ in range(8):
        rate, trip = measured(lab)
        if rate == pytest.approx(RATE, rel=0.15) and trip < 2 * DELAY + 0.002:
            break
    assert rate == pytest.approx(RATE, rel=0.15)
    assert trip == pytest.approx(2 * DELAY, abs=0.002)


def test_a_cable_loses_the_share_that_one_asks_for():
    with Lab(2, loss="10%") as lab, serving(lab, 0, COUNTS) as server:
        said(lab, 1, *PYTHON, SENDS)
        arrived = int(server.stdout.read())
    assert 0.86 < arrived / 4000 < 0.94  # six standard deviations are 2.8 %


@pytest.mark.parametrize("delay", [None, "2ms"], ids=["cable", "relay"])
def test_an_unplugged_cable_stops_everything_and_a_plugged_one_goes_on(delay):
    with Lab(2, delay=delay) as lab, serving(lab, 1, HEARS) as server:
        talker = lab.start(0, [*PYTHON, TALKS])
        assert int(server.stdout.readline()) >= 1  # bytes: on a busy machine some arrive together
        lab.unplug(0)
        assert knock(lab, "login", "node0") == "timed out"
        lab.plug(0)
        # What was held back arrives at once.
        assert any(int(server.stdout.readline()) > 1 for _ in range(50))
        lab.kill(talker)


@pytest.mark.parametrize("delay", [None, "2ms"], ids=["cable", "relay"])
def test_a_machine_without_power_is_gone_and_its_peers_hear_nothing(delay):
    with Lab(2, delay=delay) as lab, serving(lab, 1, HEARS) as server:
        talker = lab.start(0, [*PYTHON, TALKS])
        assert int(server.stdout.readline()) >= 1  # bytes: on a busy machine some arrive together
        sh(lab, 0, "touch /run/disk/file")
        lab.power_off(0)
        assert talker.wait(10) != 0
        time.sleep(0.5)
        lab.kill(server)
        # No end of file (0), no error: the connection still looked well.
        assert "0" not in server.stdout.read().split()
        lab.power_on(0)
        assert sh(lab, 0, "hostname; ls /run/disk") == "node0"
        assert knock(lab, 0, "node1") == "Connection refused"
        if delay:  # one relay for each cable, none for the one that is gone
            relay = Path(sys.executable).name
            assert processes(lab, "login").count(relay) == 2


@pytest.mark.parametrize(
    ("reset", "answer"), [(False, "timed out"), (True, "Connection refused")], ids=["drop", "reset"]
)
def test_a_closed_port_drops_or_refuses(own_lab, reset, answer):
    with serving(own_lab, 1):
        own_lab.close_port(1, "4000-5000", reset)
        assert knock(own_lab, 0, "node1") == answer
        assert knock(own_lab, 0, "node1", 5001) == "Connection refused"
        assert knock(own_lab, 1, "localhost") == "open"


@pytest.mark.parametrize("folder", ["/dev/shm", "/run/disk"])
def test_a_full_disk_is_full(own_lab, folder):
    own_lab.fill_disk(0, folder)
    for node, says in ((0, "No space left on device"), (1, "")):
        (done,) = own_lab.run(["sh", "-c", f"head -c 100000 /dev/zero > {folder}/x"], on=[node])
        assert says in done.stderr
        assert bool(done.returncode) == bool(says)


@pytest.mark.parametrize(
    "sleeps", ["sleep 60 & sleep 60", "exec > /dev/null 2>&1; sleep 60"], ids=["open", "closed"]
)
def test_a_time_limit_names_the_machines_that_were_not_ready(lab, sleeps):
    with pytest.raises(TimeoutError, match=r"^not ready after 0.5 s: node1$"):
        lab.run(["sh", "-c", f"[ {{node}} = 0 ] || ({sleeps})"], timeout=0.5)
    assert processes(lab, 1, ["cat"]) == ["cat"]


def test_an_error_in_what_hears_the_lines_ends_the_command_on_all_machines_at_once(lab):
    def tell(name, stream, line):
        raise ZeroDivisionError(line)

    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="one"):
        lab.run(["sh", "-c", "[ {node} = 1 ] || echo one; sleep 60"], on_line=tell)
    assert time.monotonic() - begin < 10
    assert processes(lab, 0, ["cat"]) == processes(lab, 1, ["cat"]) == ["cat"]


def test_what_a_command_forks_while_it_is_being_killed_ends_as_well(lab):
    """They have a session and a parent of their own: only their environment tells whose they are."""
    forks = "while :; do (setsid sleep 60 &); done"
    with pytest.raises(TimeoutError):
        lab.run(["sh", "-c", forks], on=[1], timeout=0.5)
    assert processes(lab, 1) == ["cat"]
    forking = lab.start(1, ["sh", "-c", forks])
    time.sleep(0.3)
    lab.kill(forking)
    assert processes(lab, 1) == ["cat"]


def test_a_command_that_has_ended_may_leave_a_daemon(lab):
    sh(lab, 1, "setsid sleep 60 < /dev/null > /dev/null 2>&1 &")
    assert processes(lab, 1, ["cat", "sleep"]) == ["cat", "sleep"]
    sh(lab, 1, "kill -9 -1")


def listing():
    """All that a lab could leave on this machine. The labs of other test processes do not count."""
    namespaces, worker = set(), os.environ.get("PYTEST_XDIST_WORKER")
    for process in psutil.process_iter():
        try:
            if process.environ().get("PYTEST_XDIST_WORKER") != worker:
                continue
            folder = f"/proc/{process.pid}/ns"
            namespaces |= {os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
        except (OSError, psutil.Error):  # it has ended, or is not ours
            continue
    return {
        "namespaces": namespaces,
        "mounts": Path("/proc/self/mounts").read_text(),
        "network": subprocess.check_output(["ip", "-o", "addr"], text=True).replace("  ", " "),
        "children": children(),
    }


def test_a_lab_leaves_nothing():
    before = listing()
    with Lab(2, delay="2ms") as lab:
        lab.start(0, ["sleep", "60"])
        assert listing()["namespaces"] > before["namespaces"]
    after = listing()
    # What an earlier test has killed may end meanwhile.
    assert after.pop("children") <= before.pop("children")
    assert after == before


def hangs(folder, monkeypatch, command, unless="false"):
    """Put a command first on the PATH that hangs, unless the shell's condition holds."""
    script = folder / command
    script.write_text(f'#!/bin/sh\nif {unless}; then exec {shutil.which(command)} "$@"; fi\n')
    with script.open("a") as file:
        file.write("sleep 30\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("command", "unless", "who"),
    [
        ("hostname", "false", "the switch"),
        ("hostname", '[ "$1" != node1 ]', "node1"),
        ("ip", '[ "$3" != node1 ]', "node1"),  # in the switch, where it lays the cable
    ],
    ids=["switch", "machine", "cable"],
)
def test_a_lab_that_does_not_start_ends_within_its_limit(
    tmp_path, monkeypatch, command, unless, who
):
    before = listing()
    hangs(tmp_path, monkeypatch, command, unless)
    monkeypatch.setattr("collectives.lab.lab.LIMIT", 2.0)
    begin = time.monotonic()
    with pytest.raises(Unavailable, match=f"^{who} of the lab did not start within 2 s.$"), Lab(2):
        pass
    assert time.monotonic() - begin < 10
    assert listing() == before


@needs_slurm
def test_a_slurm_that_does_not_answer_is_a_sentence(tmp_path, monkeypatch):
    hangs(tmp_path, monkeypatch, "sinfo")
    monkeypatch.setattr("collectives.lab.slurm.LIMIT", 2.0)
    with Lab(1) as lab:
        lab.environ["PATH"] = f"{tmp_path}:{lab.environ['PATH']}"
        with pytest.raises(
            Unavailable, match=r"^Slurm does not answer: not ready after 2 s: login"
        ):
            slurm.start(lab)


def test_a_process_that_cannot_be_killed_is_named_after_a_while(monkeypatch):
    process = subprocess.Popen(["sleep", "10"])
    try:
        with monkeypatch.context() as context:
            context.setattr(psutil.Process, "kill", lambda self: None)
            context.setattr(subprocess.Popen, "kill", lambda self: None)
            with pytest.raises(
                TimeoutError, match=rf"not gone after 0.2 s: process {process.pid}$"
            ):
                output.end([process], "no mark", 0.2)
    finally:
        process.kill()
        process.wait()


def test_a_command_for_a_machine_that_is_off_says_so(own_lab):
    own_lab.power_off(1)
    (done,) = own_lab.run("true", on=[1])
    assert (done.returncode, done.stderr) == (255, "node1 is off\n")


MAKER = """
import sys, time
from collectives import Lab
from collectives.backends.availability import Unavailable
with Lab(2, delay="2ms") as lab:
    for node in (0, 1, "login"):
        lab.start(node, ["sh", "-c", "setsid sleep 1000 & sleep 1000"])
    lab.run(["true"])
    print("up", flush=True)
    time.sleep(1000)
"""


def test_a_killed_maker_leaves_nothing():
    before = listing()
    maker = subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True)
    assert maker.stdout.readline() == "up\n"
    family, patience = [], 50
    while [process.name() for process in family].count("sleep") < 6 and patience:
        time.sleep(0.1)
        family, patience = psutil.Process(maker.pid).children(recursive=True), patience - 1
    assert patience
    os.kill(maker.pid, signal.SIGKILL)
    maker.wait()
    wait_until(lambda: not any(map(is_alive, family)), 5)
    assert listing() == before
    maker.stdout.close()


def lab_command(*words):
    return CliRunner().invoke(app, ["lab", *map(str, words)])


def test_the_command_names_the_machine_of_each_line():
    done = lab_command(2, "--", "sh", "-c", "echo I am {node}; echo bad >&2; exit {node}")
    assert sorted(done.stdout.splitlines()) == ["node0: I am 0", "node1: I am 1"]
    assert sorted(done.stderr.splitlines()) == ["node0: bad", "node1: bad"]
    assert done.exit_code == 1


def test_the_command_has_a_time_limit():
    done = lab_command(1, "--timeout", "0.3", "--", "sleep", "60")
    assert (done.exit_code, done.stderr) == (
        124,
        "collectives lab: not ready after 0.3 s: node0\n",
    )


def test_a_shell_runs_on_its_machine():
    command = [sys.executable, "-m", "collectives", "lab", "2", "--shell", "1"]
    done = finished(command, input="hostname\nexit 3\n")
    assert (done.returncode, done.stdout) == (3, "node1\n"), done.stderr


def ordinary_python():
    """The words that run a Python with this package as an ordinary user; None where there is none."""
    if os.getuid() != 0:
        return [sys.executable]
    drop = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    installed = [folder for folder in sys.path if folder.endswith("-packages")]
    path = f"PYTHONPATH={':'.join([str(ROOT), *installed])}"
    for python in (sys.executable, shutil.which("python3", path="/usr/bin")):
        command = [*drop, "env", path, "PYTHONDONTWRITEBYTECODE=1", str(python)]
        probe = [*command, "-c", "import collectives, psutil"]
        if finished(probe).returncode == 0:
            return command
    return None


@pytest.mark.slow
def test_every_promise_of_a_lab_holds_for_an_ordinary_user():
    """The tests of this file, once more. Slurm needs more than an ordinary user has."""
    command = ordinary_python()
    if command is None or os.getuid() != 0:
        pytest.skip("only root can become an ordinary user, who must be able to read this Python")
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o777)
        options = ["-q", "-p", "no:cacheprovider", "-k", "not ordinary and not slurm", __file__]
        environ = {"HOME": home, "TMPDIR": home}
        done = finished([*command, "-m", "pytest", *options], 300, environ, cwd=ROOT)
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, "skipped" in last) == (0, False), done.stdout
