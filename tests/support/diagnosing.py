"""Run programs under `collectives diagnose`, and read what it says of them."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import faulty_program

PROGRAM = Path(faulty_program.__file__)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
DIAGNOSE = [sys.executable, "-m", "collectives", "diagnose"]
ENVIRON = {
    **os.environ,
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    "OMP_NUM_THREADS": "1",
}


def lines_of(name):
    """The lines of a mistake that the program marks as faulty, by rank ("all" for every rank)."""
    source = PROGRAM.read_text().splitlines()
    begin = source.index(f"def {name}(rank, n):")
    found = {}
    for number, line in enumerate(source[begin:], begin + 1):
        if number > begin + 1 and line.startswith("def "):
            break
        if match := re.search(r"# <- (\w+)$", line):
            found[match[1]] = number
    return found


def diagnose(tmp_path, *command, hang_after=2, timeout=100):
    """Run a command under diagnose; return the verdict (its JSON) and the finished process."""
    file = tmp_path / "verdict.json"
    options = ["--hang-after", str(hang_after), "--timeout", str(timeout), "--json", str(file)]
    arguments = [*DIAGNOSE, *options, "--", *command]
    done = subprocess.run(
        arguments, capture_output=True, text=True, env=ENVIRON, timeout=timeout + 60
    )
    verdict = json.loads(file.read_text())
    assert done.returncode == (
        verdict["status"] if verdict["verdict"] in ("ok", "not-distributed") else 1
    ), done.stderr
    return verdict, done


def program(name, *arguments):
    return [sys.executable, str(PROGRAM), name, *arguments]


def script(tmp_path, text):
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(text))
    return [sys.executable, str(file)]
