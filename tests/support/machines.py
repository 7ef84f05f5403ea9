"""What tests need to know of a lab of machines."""

import contextlib
import subprocess
import sys
import time

import pytest

from collectives.lab import available, slurm

needs_a_lab = pytest.mark.skipif(available.missing() is not None, reason=str(available.missing()))
needs_slurm = pytest.mark.skipif(slurm.missing() is not None, reason=str(slurm.missing()))

PYTHON = [sys.executable, "-IS", "-c"]

# A server that takes connections but says nothing.
LISTENS = """
import socket, time
server = socket.create_server(("", 5000)); print("listens", flush=True)
time.sleep(60)
"""


def said(lab, node, *command):
    """What a command prints on a machine; it must succeed."""
    (done,) = lab.run(list(command), on=[node], timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def sh(lab, node, script):
    return said(lab, node, "sh", "-c", script)


def processes(lab, node, wanted=None):
    """The names of the processes of a machine; with `wanted`, wait until they are these."""
    program = (
        "import glob, os\n"
        "files = set(glob.glob('/proc/[0-9]*/comm')) - {f'/proc/{os.getpid()}/comm'}\n"
        "print(*(open(file).read().strip() for file in files))"
    )
    for _ in range(50):
        found = sorted(said(lab, node, *PYTHON, program).split())
        if wanted is None or found == wanted:
            break
        time.sleep(0.1)
    return found


def knock(lab, node, host, port=5000):
    """What becomes of a connection from a machine to a host: "open", or the system's error."""
    program = (
        "import socket\n"
        f"try: socket.create_connection(({host!r}, {port}), 0.5); print('open')\n"
        "except OSError as error: print(error.strerror or error)"
    )
    return said(lab, node, *PYTHON, program)


@contextlib.contextmanager
def serving(lab, node, program=LISTENS, python=PYTHON):
    """A program that runs on a machine while the block does. It prints a line when it listens."""
    process = lab.start(node, [*python, program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline()
        yield process
    finally:
        lab.kill(process)
