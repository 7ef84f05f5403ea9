"""Whole programs under diagnose: a slow start is never ended, and a real hang is, whatever helpers run.

The table starts/expect.tsv says of each command what must be said of it, and what must not.
"""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from diagnosing import DIAGNOSE, ENVIRON
from processes import free_port

FOLDER = Path(__file__).parent / "starts"
with open(FOLDER / "expect.tsv", encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
# One of each way to start ranks, and of each helper that may be taken for one. The others are asked
# once a week.
OFTEN = {
    *("by_variable", "with_mpi", "starts_the_other_and_comes_late", "forks", "fork_server"),
    *("spawns", "in_a_pool", "in_a_notebook", "recovers"),
    *("workers_of_a_loader", "an_orphan", "a_server_of_logs", "a_resource_tracker"),
    *("a_process_that_counts", "after_a_restart"),
}
# A rank comes so late, and so long nothing may move: in seconds.
LATE, HANG_AFTER = 16, 6


def name(row):
    return re.sub(
        r".*?(healthy|hangs)\.py ", "", row["command"].replace("torchrun --", "torchrun ")
    )


def run(row, tmp_path):
    """The verdict, the status, and what the command said on both outputs."""
    ports = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    environ = ENVIRON | {name: str(value) for name, value in (ports | {"LATE": LATE}).items()}
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    words = row["command"]
    if "torchrun" in words and "--standalone" not in words:  # which alone has a store a restart
        words = words.replace("torchrun", f"torchrun --master-port {ports['MASTER_PORT']}")
    file = tmp_path / "verdict.json"
    options = ["--hang-after", str(HANG_AFTER), "--timeout", "400", "--json", str(file), "--"]
    command = [*DIAGNOSE, *options, "sh", "-c", f"exec {words}"]
    done = subprocess.run(
        command, env=environ, cwd=FOLDER, capture_output=True, text=True, timeout=500
    )
    verdict = json.loads(file.read_text())
    return verdict, done.returncode, done.stdout + done.stderr


def test_what_is_asked_often_is_in_the_table():
    assert {name(row) for row in ROWS} >= OFTEN


# Each starts a program that waits for LATE; test_latecomers.py has the rules.
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row, id=name(row), marks=pytest.mark.slow if name(row) in OFTEN else pytest.mark.weekly
        )
        for row in ROWS
    ],
)
def test_what_the_table_says_of_a_command_is_said(row, tmp_path):
    verdict, status, said = run(row, tmp_path)
    assert verdict["verdict"] in row["verdict"].split("|"), said
    assert status == (0 if row["verdict"] == "ok" else 1), said
    assert re.search(row["must be said"], said), said
    ours = said[said.find("slow:") :] if row["must not be said"] == "hang" else verdict["says"]
    assert not re.search(f"^{row['must not be said']}: ", ours, re.MULTILINE), said
