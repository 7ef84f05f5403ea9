"""Which live processes a missing rank may still be, for families of processes made by hand."""

import json

import pytest

from collectives.diagnosis.rules.latecomers import (
    Joined,
    Process,
    ended,
    latecomers,
    on_other_machines,
)
from collectives.diagnosis.rules.snapshot import Verdict
from collectives.diagnosis.watch.job import KEEPS_STORE, Job
from collectives.diagnosis.watch.process_table import ProcessTable
from collectives.recording import launchers
from collectives.recording.ending import Ending

SCRIPT = ("python", "train.py")
SPAWNED = ("python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork")
TORCHRUN = ("python", "torchrun", "train.py")


def numbered(rank, size=2, **more):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)} | more


def torchrun(*others):
    """torchrun (10) and its rank 0 (20), which has joined."""
    return [
        Process(10, 0, TORCHRUN),
        Process(20, 10, SCRIPT, numbered(0)),
        *others,
    ]


def spawned(*others, size=2):
    """A script (10) and what multiprocessing started as its rank 0 (20), which has joined."""
    return [Process(10, 0, SCRIPT), Process(20, 10, SPAWNED, runs="f", began=5), *others]


def main_and(*others):
    """A script that is rank 0 itself (10), and joined at 50."""
    return [Process(10, 0, SCRIPT), *others]


# The processes, which of them is rank 0, and whether process 30 may be rank 1.
HEALTHY = {
    "torchrun started it": (torchrun(Process(30, 10, SCRIPT, numbered(1))), 20),
    "it is a shell yet": (
        torchrun(Process(30, 10, ("sh", "run.sh"), numbered(1), recorded=False)),
        20,
    ),
    "mpiexec started it": (
        [
            Process(10, 0, ("mpiexec",), recorded=False),
            Process(20, 10, SCRIPT, {"PMI_RANK": "0", "PMI_SIZE": "2"}),
            Process(30, 10, SCRIPT, {"PMI_RANK": "1", "PMI_SIZE": "2"}),
        ],
        20,
    ),
    "rank 0 started it": (main_and(Process(30, 10, SCRIPT, {"LOCAL_RANK": "1"})), 10),
    "rank 0 of a step of Slurm started it": (
        [
            Process(10, 0, SCRIPT, {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}),
            Process(30, 10, SCRIPT, {"SLURM_PROCID": "0", "LOCAL_RANK": "1"}),
        ],
        10,
    ),
    "its number is its argument": (
        [
            Process(10, 0, SCRIPT),
            Process(20, 10, (*SCRIPT, "--rank=0")),
            Process(30, 10, (*SCRIPT, "--rank=1")),
        ],
        20,
    ),
    "its number is in a variable that we do not know": (
        [
            Process(10, 0, ("sh", "run.sh"), recorded=False),
            Process(20, 10, SCRIPT, {"WORKER_RANK": "0"}),
            Process(30, 10, SCRIPT, {"WORKER_RANK": "1"}),
        ],
        20,
    ),
    "multiprocessing started both": (spawned(Process(30, 10, SPAWNED, runs="f")), 20),
    "multiprocessing is just starting it": (spawned(Process(30, 10, SPAWNED)), 20),
    "it runs something else than rank 0": (spawned(Process(30, 10, SPAWNED, runs="g")), 20),
    "rank 0 started it by multiprocessing before it joined": (
        main_and(Process(30, 10, SPAWNED, runs="f", began=40)),
        10,
    ),
}
HELPER = {
    "torchrun": (torchrun(), 20),
    "a worker of a DataLoader, which inherits the number of its rank": (
        torchrun(Process(30, 20, SPAWNED, numbered(0), runs="_worker_loop", is_helper=True)),
        20,
    ),
    "an orphan of rank 1, which ended early": (
        torchrun(
            Process(25, 10, SCRIPT, numbered(1), runs_still=False),
            Process(30, 25, ("python", "log.py"), numbered(1)),
        ),
        20,
    ),
    "an orphan whose parent ended before it could be noted": (
        torchrun(Process(30, 0, ("python", "log.py"), numbered(1))),
        20,
    ),
    "an orphan that is no Python": (
        torchrun(Process(30, 0, ("tensorboard",), numbered(1), recorded=False)),
        20,
    ),
    "a rank of an earlier attempt": (
        torchrun(Process(30, 10, SCRIPT, numbered(1, TORCHELASTIC_RESTART_COUNT="1"))),
        20,
    ),
    "a forked child of rank 0": (main_and(Process(30, 10, SCRIPT, recorded=False)), 10),
    "a helper that rank 0 started once it had joined": (
        main_and(Process(30, 10, SPAWNED, runs="log", began=60)),
        10,
    ),
    "a server of logs, which waits": (
        spawned(Process(30, 10, SPAWNED, runs="log", waits=True)),
        20,
    ),
    "a worker of a pool": (
        spawned(Process(30, 10, SPAWNED, runs="multiprocessing.pool.worker", is_helper=True)),
        20,
    ),
    "a resource tracker": (
        spawned(Process(30, 10, ("python", "-c", "from multiprocessing.resource_tracker"))),
        20,
    ),
    "another program that the script started": (
        spawned(Process(30, 10, ("python", "-m", "http.server", "1"))),
        20,
    ),
}


def found(processes, rank_0, absent=1):
    joined = Joined(2, {1 - absent: rank_0}, {1 - absent: 50})
    table = {process.pid: process for process in processes}
    late = latecomers([absent], table, joined, {rank_0})
    return [process.pid for process in late.get(absent, [])]


@pytest.mark.parametrize(("processes", "rank_0"), HEALTHY.values(), ids=HEALTHY)
def test_a_process_that_may_become_the_rank_is_found(processes, rank_0):
    assert found(processes, rank_0) == [30]


@pytest.mark.parametrize(("processes", "rank_0"), HELPER.values(), ids=HELPER)
def test_a_helper_is_no_rank(processes, rank_0):
    assert found(processes, rank_0) == []


def test_the_process_that_starts_the_others_may_be_rank_0():
    child = Process(20, 10, SCRIPT, {"LOCAL_RANK": "1"})
    assert found(main_and(child), 20, absent=0) == [10]
    assert found(torchrun(), 20, absent=0) == []
    first = Process(19, 10, SCRIPT, {"LOCAL_RANK": "0"}, runs_still=False)
    assert found(main_and(first, child), 20, absent=0) == [], "rank 0 was another, and has ended"


def test_a_rank_that_ended_before_it_joined_is_known():
    table = {
        one.pid: one for one in torchrun(Process(25, 10, SCRIPT, numbered(1), runs_still=False))
    }
    assert ended(1, table, Joined(2, {0: 20}, {})).pid == 25


def test_ranks_that_the_launcher_started_on_another_machine_are_known():
    here = [Process(20 + r, 10, SCRIPT, numbered(r, 4, LOCAL_WORLD_SIZE="2")) for r in (0, 1)]
    table = {one.pid: one for one in here}
    both = Joined(4, {0: 20, 1: 21}, {})
    assert on_other_machines([2, 3], [], table, both) == {2, 3}
    assert on_other_machines([1, 2, 3], [1], table, Joined(4, {0: 20}, {})) == {2, 3}
    assert on_other_machines([1, 2, 3], [], table, Joined(4, {0: 20}, {})) == set(), (
        "rank 1 has no process here, and may have been meant for this machine"
    )


def test_where_two_ranks_run_one_function_a_third_runs_it_too():
    table = {one.pid: one for one in spawned(Process(21, 10, SPAWNED, runs="f"))}
    joined = Joined(3, {0: 20, 1: 21}, {})
    assert not latecomers([2], table | {30: Process(30, 10, SPAWNED, runs="log")}, joined, {20, 21})
    assert latecomers([2], table | {30: Process(30, 10, SPAWNED, runs="f")}, joined, {20, 21})


def test_a_child_that_only_inherits_the_number_of_a_rank_is_known(tmp_path):
    for pid, parent, environ in ((10, 0, {}), (20, 10, numbered(0)), (30, 20, numbered(0))):
        recorded = {"parent": parent, "environ": environ}
        (tmp_path / f"{pid}.start").write_text(json.dumps(recorded))
    table = ProcessTable(tmp_path)
    assert [table.inherits_rank(pid) for pid in (10, 20, 30)] == [False, False, True]


@pytest.mark.parametrize("shared", ["True", "False"])
def test_after_a_restart_a_fault_is_told_with_the_store_that_torchrun_kept(shared, monkeypatch):
    environ = numbered(0) | {launchers.ATTEMPT: "1", launchers.AGENT_STORE: shared}
    job = Job()
    job.attempts = [Verdict(Ending.RAISED, "rank 1: ValueError: a bad batch")]
    job.table.table = {20: Process(20, 10, SCRIPT, environ)}
    monkeypatch.setattr(job, "_first_fault", lambda stalled: Verdict(Ending.HUNG, "nothing moves"))
    assert (KEEPS_STORE in job.verdict(stalled=True).says) == (shared == "True")
