"""`collectives diagnose --pid`: what it says of ranks that stand, and of processes that are none."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from diagnosing import DIAGNOSE, ENVIRON
from processes import wait_until

from collectives.cli.diagnose import diagnose
from collectives.diagnosis.attach import family, look, report, stacks

FOLDER = Path(__file__).parents[1] / "support" / "attach"


# --- the report, of what was seen ------------------------------------------------------------------


def row(rank, line, state="waits", call="all_reduce()", inside=True, **more):
    place = {"call": call, "inside": inside, "file": "/job/train.py", "line": line}
    place |= {"function": "step", "way": [["/job/train.py", line, "step"]], "variables": {}}
    place |= {"source": "", "also": [], "why": None, "pid": 100 + rank, "machine": "here"}
    return place | {"rank": rank, "state": state} | more


def document(*rows, ended=(), world_size=None, **more):
    job = {"ranks": list(rows), "ended": list(ended), "world_size": world_size}
    one = {"standing": 7, "machine": "here", "command": "torchrun train.py", "between": 2.0}
    return one | {"above": None, "jobs": [job]} | more


def says(*rows, **more):
    return report.write([document(*rows, **more)])


SLEEPS = {"call": "outside torch.distributed", "inside": False}


def test_ranks_at_one_place_share_a_line_and_the_odd_one_is_named():
    assert says(row(0, 22), row(1, 15, **SLEEPS), row(2, 22), row(3, 22)) == "\n".join(
        [
            "where they stand: 4 of 4 ranks stood still, looked at twice, 2 s apart, "
            "below process 7 (torchrun train.py)",
            "  ranks 0,2,3  in all_reduce()                          /job/train.py:22 in step",
            "  rank  1      stands still, outside torch.distributed  /job/train.py:15 in step",
            "  -> outside torch.distributed: rank 1",
            "  -> 3 of 4 stand at one place, elsewhere: rank 1",
        ]
    )


def test_two_camps_of_one_size_accuse_nobody():
    text = says(row(0, 22), row(1, 15, call="barrier()"))
    assert "-> no majority: compare the lines" in text
    assert "elsewhere" not in text


def test_one_line_that_is_reached_in_two_ways_is_two_places():
    way = [["/job/train.py", 22, "step"], ["/job/train.py", 40, "evaluate"]]
    assert "elsewhere: rank 2" in says(row(0, 22), row(1, 22), row(2, 22, way=way))


def test_where_all_stand_at_one_line_the_variables_that_differ_are_shown():
    rows = [row(i, 22, variables={"i": "34"[i == 2], "rank": f"{i}", "n": "3"}) for i in range(3)]
    assert "-> all stand at one place; not the same there: i=3 on ranks 0,1, i=4 on rank 2" in says(
        *rows
    )


def test_a_rank_that_has_ended_is_named():
    text = says(row(0, 22), row(2, 22), ended=[1])
    assert "rank  1    ended: no process has this number" in text
    assert "-> rank 1 left: a collective of all ranks cannot end without" in text


def test_a_rank_that_moves_may_be_what_the_others_wait_for():
    text = says(row(0, 22), row(1, 15, "moves", **SLEEPS))
    assert "rank 1 did not stand still: the others may only wait for it" in text


def test_nobody_waits_in_a_job_that_moves():
    rows = [row(0, 22, "runs"), row(1, 15, "moves", **SLEEPS)]
    assert not report.somebody_waits([document(*rows)])
    assert says(*rows).startswith("where they stand: nobody waits, looked at twice")


def test_the_files_of_several_machines_are_one_report(tmp_path, capsys):
    names = []
    for machine, ranks in (("node0", (0, 1)), ("node1", (2,))):
        rows = [row(rank, 22, machine=machine) for rank in ranks]
        names.append(tmp_path / f"{machine}.json")
        whole = document(*rows, world_size=4, machine=machine)
        names[-1].write_text(json.dumps(whole, indent=1))
    assert diagnose(log=str(names[0]), command=[str(names[1])]) == 1
    text = capsys.readouterr().out
    assert "3 of 3 ranks stood still" in text
    assert "rank  2    in all_reduce()  /job/train.py:22 in step on node1" in text
    assert "not looked at: rank 3 of 4" in text


# --- what cannot be looked at ----------------------------------------------------------------------

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="--pid reads /proc, as Linux has it"
)


def refused(capsys, pid, **options):
    assert diagnose(pid=pid, **options) == 2
    return capsys.readouterr().err


def test_a_number_that_no_process_has_is_said(capsys):
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert f"there is no process {ended.pid} on this machine" in refused(capsys, ended.pid)


def test_a_process_that_is_no_python_is_said(capsys):
    with subprocess.Popen(["sleep", "100"]) as process:
        assert f"process {process.pid} (sleep 100) is no Python program" in refused(
            capsys, process.pid
        )
        process.kill()


def test_python_programs_that_are_no_ranks_are_shown_with_their_lines(capsys, tmp_path):
    file = tmp_path / "server.py"
    file.write_text("import time\nprint(flush=True)\ntime.sleep(100)\n")
    with subprocess.Popen([sys.executable, file], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        text = refused(capsys, process.pid)
        process.kill()
    assert f"no rank of torch.distributed below process {process.pid}" in text
    assert f"{file}:3 in <module>" in text


def test_a_command_and_a_pid_do_not_go_together(capsys):
    assert "--pid runs nothing" in refused(capsys, 1, command=["true"])


def test_without_py_spy_its_name_is_said(capsys, monkeypatch):
    monkeypatch.setattr(stacks.importlib.metadata, "files", lambda name: None)
    assert "py-spy reads the stacks, and is not here" in refused(capsys, os.getpid())


@pytest.mark.parametrize(
    ("user", "way_out"),
    [
        (1000, f"sudo {sys.executable} -I -m collectives diagnose --pid 7"),
        (0, "docker run --cap-add SYS_PTRACE"),
    ],
    ids=["a user", "root in a container"],
)
def test_without_the_right_the_way_out_is_one_line(capsys, monkeypatch, user, way_out):
    def forbidden(*arguments):
        raise stacks.NoRightError

    one = family.Member(7, 1, ["python"], {}, True, True, True)
    monkeypatch.setattr(look, "below", lambda pid: {7: one})
    monkeypatch.setattr(look, "read", forbidden)
    monkeypatch.setattr(look.os, "geteuid", lambda: user)
    assert way_out in refused(capsys, 7)


@pytest.mark.parametrize(
    "message",
    ["Error: Permission Denied: Try running again with elevated permissions", "(os error 1)"],
)
def test_a_refusal_of_the_system_is_told_from_other_failures(monkeypatch, message):
    done = subprocess.CompletedProcess([], 1, "", message)
    monkeypatch.setattr(stacks.subprocess, "run", lambda *args, **kwargs: done)
    with pytest.raises(stacks.NoRightError):
        stacks.read(Path("py-spy"), os.getpid())


# --- jobs that run ---------------------------------------------------------------------------------


def lines():
    """The numbers of the lines of the program that end in a mark."""
    source = (FOLDER / "program.py").read_text().splitlines()
    marked = [(line.partition("  # <- ")[2], number) for number, line in enumerate(source, 1)]
    return {mark: number for mark, number in marked if mark}


def expected():
    with open(FOLDER / "expect.tsv", newline="") as file:
        rows = csv.reader((line for line in file if line[0] != "#"), delimiter="\t")
        return [(*each, "", "")[:6] for each in rows]


@pytest.fixture
def shell(tmp_path):
    """Below one shell: three ranks of torchrun, three of mp.spawn, two that are scripts."""
    python, program = sys.executable, FOLDER / "program.py"
    command = f"""
        {python} -m torch.distributed.run --standalone --nproc-per-node 3 {program} torchrun &
        {python} {program} spawn {tmp_path}/a &
        for rank in 0 1; do {python} {program} scripts {tmp_path}/b $rank & done
        wait
    """
    with subprocess.Popen(["sh", "-c", command], env=ENVIRON, start_new_session=True) as process:
        yield process.pid
        for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]:
            one.kill()


@pytest.mark.slow
def test_jobs_that_hang_or_move_are_told_apart_below_one_shell(shell, tmp_path):
    file = tmp_path / "stands.json"

    def seen():
        command = [*DIAGNOSE, "--pid", str(shell), "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRON, timeout=120)
        return differences(done, json.loads(file.read_text() or "{}")) == []

    wait_until(seen, 240)
    whole = json.loads(file.read_text())
    assert whole["status"] == 1
    assert whole["says"].count("\njob ") == 3
    assert "outside torch.distributed: rank 1" in whole["says"]
    # Below one rank nothing is known of the others.
    job = next(one for one in whole["jobs"] if len(one["ranks"]) == 3)
    alone = [look.look(one["pid"], 0.1)["jobs"][0] for one in job["ranks"]]
    assert [(len(one["ranks"]), one["ended"]) for one in alone] == [(1, [])] * 3


def differences(done, whole):
    """What the report lacks of expect.tsv."""
    if done.returncode == 2:
        return [done.stderr]
    marked = lines()
    found = [
        {f"{one['rank']}": one for one in job["ranks"]}
        | {f"{rank}": {"state": "ended", "line": None, "call": ""} for rank in job["ended"]}
        for job in whole["jobs"]
    ]
    lacks = []
    for start in dict.fromkeys(each[0] for each in expected()):
        rows = [each for each in expected() if each[0] == start]
        if not any(all(fits(job.get(each[1]), each, marked) for each in rows) for job in found):
            lacks.append((start, found))
    return lacks


def fits(one, expected, marked):
    _, _, state, call, mark, beside = expected
    if one is None or (one["state"] not in (state, "runs" if state == "moves" else state)):
        return False
    return (
        one["line"] == marked.get(mark)
        and call in ("-", one["call"])
        and beside in "".join(each["who"] for each in one.get("also", ()))
    )
