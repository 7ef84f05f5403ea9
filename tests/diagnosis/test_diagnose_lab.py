"""`collectives diagnose` in front of the torchrun of each machine of a lab: what goes wrong between
machines is named with the machine, the rank and the line.
"""

import json
import sys

import pytest
from diagnosing import DIAGNOSE

from collectives import Lab
from collectives.lab import available

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(available.missing() is not None, reason=str(available.missing())),
]

PROGRAM = """
import os, sys, time, torch, torch.distributed as dist

dist.init_process_group("gloo")  # joins
what, machine, x = sys.argv[1], os.uname().nodename, torch.ones(4)
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(*place, is_master=False, wait_for_workers=False)
known = 0.0  # when all machines had said who they are
for step in range(5 if what == "ends" else 3000):
    if what == "slow" and known and machine == "node1":
        time.sleep(8)  # computes
    dist.all_reduce(x)  # trains
    said = b""
    if store.check(["collectives/diagnose/machines"]):
        said = store.get("collectives/diagnose/machines")
    if not known and said.count(b"node") == dist.get_world_size():
        known = time.monotonic()
    if known and time.monotonic() > known + 2:
        print("known", flush=True)
        if what == "slow":
            break
        known = float("inf")
    time.sleep(0.1)
dist.destroy_process_group()
"""
LINES = {line.partition("# ")[2]: number for number, line in enumerate(PROGRAM.splitlines(), 1)}


def diagnosed(tmp_path, what="runs", meets=(), limit=150):
    """The command for each machine."""
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    options = f"--hang-after 3 --timeout {limit} --json {tmp_path}/{{node}}.json".split()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
    return [
        *("env", "OMP_NUM_THREADS=1", *DIAGNOSE, *options, "--"),
        *(*torchrun, *meets, str(file), what),
    ]


def static(machines):
    port = ["--master-addr", "node0", "--master-port", "29500"]
    return ["--nnodes", str(machines), "--node-rank", "{node}", *port]


def run(lab, command, on=None, at_known=None):
    """What each machine wrote to stderr. `at_known`: what happens once the machines are known."""
    said = {f"node{node}": "" for node in lab.nodes}

    def tell(name, stream, line):
        nonlocal at_known
        if stream == "stderr":
            said[name] += line
        elif line == "known\n" and at_known:
            at_known, happens = None, at_known
            happens()

    lab.run(command, on=on, timeout=200, on_line=tell)
    return said


def report(tmp_path, node):
    return json.loads((tmp_path / f"{node}.json").read_text())


@pytest.mark.parametrize(
    ("machines", "lost", "happens"),
    [(4, 2, Lab.unplug), (3, 0, Lab.unplug), (3, 2, Lab.power_off)],
    ids=["cable_of_four", "cable_of_the_store", "power_of_three"],
)
def test_a_machine_that_cannot_be_reached_is_named_with_its_rank(machines, lost, happens, tmp_path):
    with Lab(machines) as lab:
        command = diagnosed(tmp_path, meets=static(machines))
        said = run(lab, command, at_known=lambda: happens(lab, lost))
    for node in set(range(machines)) - {lost}:
        verdict = report(tmp_path, node)
        guilty = [(one["rank"], one["machine"]) for one in verdict["guilty"]]
        assert guilty == [(lost, f"node{lost}")], verdict["says"]
        first = f"hang: node{lost} does not answer: rank {lost} cannot be reached"
        assert verdict["says"].startswith(first)
        waits = verdict["ranks"][node]
        # gloo may have given up already.
        assert waits["does"].removeprefix("in ") == "all_reduce(SUM, float32[4])"
        assert waits["where"] == f"{tmp_path}/train.py:{LINES['trains']} on node{node}"
        assert verdict["says"] in said[f"node{node}"]
    if happens is Lab.unplug:
        verdict = report(tmp_path, lost)
        assert f"node{lost} itself has no network: look at the cable of eth0" in verdict["says"]


def test_a_machine_that_never_came_is_named_by_its_number(tmp_path):
    """torchrun starts no rank before all are there: no line can be named."""

    with Lab(3) as lab:
        said = run(lab, diagnosed(tmp_path, meets=static(3), limit=40), on=[0, 2])
    for node in (0, 2):
        assert report(tmp_path, node)["says"] == (
            "slow: no rank has started: torchrun waits for 3 machines\n"
            "  here      node0 --node-rank 0, node2 --node-rank 2\n"
            "  not here  --node-rank 1\n"
            "  ended after 40 s, the time limit"
        )
        assert "  not here  --node-rank 1\n" in said[f"node{node}"]


def test_a_slow_machine_is_named_with_its_rank_and_line_and_nobody_is_ended(tmp_path):
    with Lab(3) as lab:
        said = run(lab, diagnosed(tmp_path, "slow", static(3)))
    for node, text in enumerate(said.values()):
        # Before it, a machine that is late may have been told: that is slow as well.
        _, found, rest = text.partition("slow: rank 1 has not joined all_reduce #")
        assert found, text
        (line,) = (one for one in rest.splitlines() if one.startswith("  rank  1"))
        assert line.split() == [
            *("rank", "1", "computing"),
            *(f"{tmp_path}/train.py:{LINES['computes']}", "on", "node1"),
        ]
        assert report(tmp_path, node)["verdict"] == "ok"
