"""launch inside a launcher's world gives the same results and leaves that world as it was."""

import json
import sys
import textwrap
from pathlib import Path

import pytest
from machines import needs_a_lab
from processes import finished

from collectives import Lab

PROLOGUE = """
import json, os, subprocess, sys, time
import psutil, torch
import torch.distributed as dist
from collectives import LaunchError, launch

me = int(os.environ["RANK"])
def write(facts):
    with open(os.path.join(sys.argv[1], f"facts-{me}.json"), "w") as file:
        json.dump(facts, file)
def total(rank, world_size, device):
    x = torch.tensor([rank + 1])
    dist.all_reduce(x)
    return x.item()
"""


def torchrun(tmp_path: Path, body: str):
    """Run a program under torchrun; return the facts of each rank, and the finished torchrun."""
    program = tmp_path / "program.py"
    program.write_text(PROLOGUE + textwrap.dedent(body))
    done = finished(["torchrun", "--nproc-per-node", 2, program, tmp_path])
    files = [tmp_path / f"facts-{rank}.json" for rank in range(2)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files], done


# What goes well, or leaves the world as it was. One torchrun runs all of it: starting one takes
# longer than these functions.
SCENARIOS = """
def error_of(fn, **options):
    try:
        launch(fn, **options)
    except (LaunchError, ValueError) as error:
        return str(error).splitlines()[0]

def every_rank_gets_all_results_any_number_of_times_and_big_ones_too():
    assert [launch(total) for _ in range(5)] + [launch(total, 2)] == [[3, 3]] * 6
    big = launch(lambda rank, world_size, device: torch.full((2_500_000,), rank, dtype=torch.int32))
    assert [(len(x), int(x.min()), int(x.max())) for x in big] == [(2_500_000, r, r) for r in range(2)]
    assert not dist.is_initialized()

def another_number_of_ranks_or_backend_than_there_is_says_so():
    number = "nproc=4, but torchrun started 2 ranks: leave nproc out."
    assert error_of(total, nproc=4) == number
    assert "did you mean 'gloo'" in error_of(total, backend="glo")

def on_one_node_gloo_listens_on_loopback_only_and_the_environment_is_given_back():
    def listening(rank, world_size, device):
        dist.barrier()
        connections = psutil.Process().net_connections("tcp")
        return [c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN]
    # On one machine this choice, with which gloo would fail, is not used.
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
    before = dict(os.environ)
    assert {address for found in launch(listening) for address in found} == {"127.0.0.1"}
    assert dict(os.environ) == before
    del os.environ["GLOO_SOCKET_IFNAME"]

def an_exception_in_one_rank_is_raised_in_all():
    def fails(rank, world_size, device):
        if rank == 1:
            raise KeyError("no such thing")
        dist.barrier()
    assert error_of(fails) == "rank 1 raised KeyError: 'no such thing'"

def a_child_of_a_worker_is_no_worker():
    program = "from collectives.launcher.worker import launcher_worker; print(launcher_worker())"
    assert subprocess.check_output([sys.executable, "-c", program]) == b"None\\n"

def a_launch_inside_a_joined_rank_says_so():
    assert "launch was called inside a rank" in error_of(lambda *_: launch(total))

def results_arrive_although_a_rank_destroyed_its_group():
    def destroys(rank, world_size, device):
        if rank == 1:
            dist.destroy_process_group()
        return rank
    assert launch(destroys) == [0, 1]

def a_group_of_the_callers_is_used_and_left_alone():
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    assert launch(lambda *_: dist.group.WORLD is group) == [True] * 2
    x = torch.ones(1)
    dist.all_reduce(x)
    assert (x.item(), dist.is_initialized()) == (2.0, True)
    dist.destroy_process_group()

for scenario in (
    every_rank_gets_all_results_any_number_of_times_and_big_ones_too,
    another_number_of_ranks_or_backend_than_there_is_says_so,
    on_one_node_gloo_listens_on_loopback_only_and_the_environment_is_given_back,
    an_exception_in_one_rank_is_raised_in_all,
    a_child_of_a_worker_is_no_worker,
    a_launch_inside_a_joined_rank_says_so,
    results_arrive_although_a_rank_destroyed_its_group,
    a_group_of_the_callers_is_used_and_left_alone,
):
    scenario()
    assert launch(total) == [3, 3]  # the world stays usable
write("all is as it should be")
"""


def test_in_a_world_of_torchrun(tmp_path):
    facts, done = torchrun(tmp_path, SCENARIOS)
    assert facts == ["all is as it should be"] * 2, done.stderr


@pytest.mark.slow  # test_launch_failures.py has the same without a launcher
def test_at_the_time_limit_the_error_says_where_each_rank_stood(tmp_path):
    facts, done = torchrun(
        tmp_path,
        """
        def hangs(rank, world_size, device):
            if rank == 1:
                time.sleep(60)
            dist.barrier()
        try:
            launch(hangs, timeout=3)
        except LaunchError as error:
            write({"rank": error.rank, "kind": error.kind, "lines": str(error).splitlines()})
        """,
    )
    assert done.returncode != 0
    assert facts[1] is None, "a rank that sleeps on is ended"
    assert (facts[0]["rank"], facts[0]["kind"]) == (1, "hung")
    assert facts[0]["lines"][1].endswith("in hangs: dist.barrier()")
    assert facts[0]["lines"][2].endswith("in hangs: time.sleep(60)")
    assert "time.sleep" not in done.stdout
    assert "in hangs" in done.stderr


@pytest.mark.slow
def test_a_launch_that_one_rank_leaves_out_ends(tmp_path):
    facts, done = torchrun(
        tmp_path,
        """
        if me == 0:
            try:
                launch(total, timeout=1)
            except LaunchError as error:
                write({"kind": error.kind, "lines": str(error).splitlines()})
        else:
            time.sleep(5)
        """,
    )
    assert facts[0]["kind"] == "hung", done.stderr
    assert facts[0]["lines"][0].startswith("rank 1 hung")


# What a process writes into the store that has no part in the world, but can reach the port.
STRANGER = """
import pickle, sys
import torch.distributed as dist

class Evil:
    def __reduce__(self):
        return exec, (f"open({sys.argv[3]!r} + '/executed', 'w')",)

store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False)
store = dist.PrefixStore("collectives", store)
for key in sys.argv[4:]:
    store.set(key, "1" if key.endswith("pieces/1") else pickle.dumps(Evil()))
"""


@pytest.mark.slow
def test_nothing_that_a_stranger_writes_into_the_store_is_executed(tmp_path):
    program = f"""
    def stranger(rank, *keys):
        has_written = os.path.join(sys.argv[1], keys[0].replace("/", "-"))
        if rank == 0:
            address = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], sys.argv[1]
            subprocess.run([sys.executable, "-c", {STRANGER!r}, *address, *keys], check=True)
            open(has_written, "w").close()
        else:
            while not os.path.exists(has_written):
                time.sleep(0.01)
            time.sleep(1)
        return rank
    results = launch(lambda rank, *_: stranger(rank, "0/piece/1/0", "0/pieces/1", "0/returned/1"))
    try:
        launch(lambda rank, *_: stranger(rank, "1/first", "1/stack/1"))
    except LaunchError as error:
        write({{"results": results, "error": str(error)}})
    """
    facts, done = torchrun(tmp_path, program)
    assert not (tmp_path / "executed").exists()
    assert all(facts), done.stderr
    assert [found["results"] for found in facts] == [[0, 1]] * 2
    assert "cannot be read" in facts[0]["error"]  # rank 1 may find that rank 0 has left


# One task of srun on each machine. Slurm's variables are all that we see of it.
STEP = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "{node}",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "{node}",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "node[0-1]",
}
LISTENING = """
import psutil, socket
from collectives import launch
def listening(rank, world_size, device):
    connections = psutil.Process().net_connections("tcp")
    return [c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN]
print(socket.gethostbyname("node0"), *launch(listening)[0])
"""


@needs_a_lab
def test_under_srun_on_two_machines_nothing_listens_on_all_addresses():
    variables = [f"{name}={value}" for name, value in STEP.items()]
    with Lab(2) as lab:
        done = lab.run(["env", *variables, sys.executable, "-c", LISTENING], timeout=60)
    assert [one.returncode for one in done] == [0, 0], done[0].stderr
    for machine in done:
        node0, *addresses = machine.stdout.split()
        assert set(addresses) == {node0} != {"127.0.0.1"}
