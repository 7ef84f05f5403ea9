"""launch inside a launcher's world gives the same results and leaves that world as it was."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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


def torchrun(tmp_path: Path, body: str, nproc: int = 2, wrapper: tuple[str, ...] = ()):
    """Run a program under torchrun; return the facts that each rank wrote, and the finished
    torchrun.
    """
    program = tmp_path / "program.py"
    program.write_text(PROLOGUE + textwrap.dedent(body))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(nproc)]
    command += ["--no-python", *wrapper, sys.executable] if wrapper else []
    environ = os.environ.copy()
    environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
    done = subprocess.run(
        [*command, str(program), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        env=environ,
    )
    files = [tmp_path / f"facts-{rank}.json" for rank in range(nproc)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files], done


# What goes well, or leaves the world as it was. One torchrun runs all of it: starting one takes
# longer than these functions.
SCENARIOS = """
def results_of_any_size_any_number_of_times():
    results = [launch(total) for _ in range(5)] + [launch(total, 3)]
    big = launch(lambda rank, world_size, device: torch.full((10_000_000,), rank, dtype=torch.int32))
    big = [[len(x), int(x.min()), int(x.max())] for x in big]
    return {"results": results, "big": big, "initialised": dist.is_initialized()}

def arguments_that_do_not_fit():
    errors = []
    for options in ({"nproc": 4}, {"backend": "glo"}):
        try:
            launch(total, **options)
        except ValueError as error:
            errors.append(str(error))
    return {"errors": errors, "after": launch(total)}

def where_gloo_listens():
    def listening(rank, world_size, device):
        dist.barrier()
        connections = psutil.Process().net_connections("tcp")
        return [c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN]
    # On one machine this choice, with which gloo would fail, is not used.
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
    before = dict(os.environ)
    facts = {"addresses": launch(listening), "same_environment": dict(os.environ) == before}
    del os.environ["GLOO_SOCKET_IFNAME"]
    return facts

def an_exception_in_one_rank():
    def fails(rank, world_size, device):
        if rank == 1:
            raise KeyError("no such thing")
        dist.barrier()
    try:
        launch(fails)
    except LaunchError as error:
        first = str(error).splitlines()[0]
        return {"rank": error.rank, "kind": error.kind, "first": first, "after": launch(total)}

def a_child_of_a_worker():
    program = "from collectives import launch\\nprint(launch(lambda rank, world_size, device: world_size, 2))"
    command = [sys.executable, "-c", program]
    child = subprocess.run(command, capture_output=True, text=True) if me == 0 else None
    return {"child": child and child.stdout, "own": launch(total)}

def a_launch_inside_a_rank():
    try:
        launch(lambda *_: launch(total))
    except LaunchError as error:
        return {"first": str(error).splitlines()[0], "after": launch(total)}

def a_group_of_the_callers():
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    same = launch(lambda *_: dist.group.WORLD is group)
    x = torch.ones(1)
    dist.all_reduce(x)
    facts = {"same": same, "after": x.item(), "initialised": dist.is_initialized()}
    dist.destroy_process_group()
    return facts

facts = {}
for scenario in (
    results_of_any_size_any_number_of_times,
    arguments_that_do_not_fit,
    where_gloo_listens,
    an_exception_in_one_rank,
    a_child_of_a_worker,
    a_launch_inside_a_rank,
    a_group_of_the_callers,
):
    facts[scenario.__name__] = scenario()
    write(facts)
"""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    """A function that returns the facts of a scenario, by rank."""
    facts, done = torchrun(tmp_path_factory.mktemp("joins"), SCENARIOS, nproc=3)

    def of(name: str) -> list:
        assert all(found and name in found for found in facts), done.stderr
        return [found[name] for found in facts]

    return of


def test_every_rank_gets_the_full_list_any_number_of_times_and_big_results_too(scenario):
    big = [[10_000_000, rank, rank] for rank in range(3)]
    expected = {"results": [[6, 6, 6]] * 6, "big": big, "initialised": False}
    assert scenario("results_of_any_size_any_number_of_times") == [expected] * 3


def test_a_group_of_the_callers_is_used_and_left_alone(scenario):
    expected = {"same": [True] * 3, "after": 3.0, "initialised": True}
    assert scenario("a_group_of_the_callers") == [expected] * 3


def test_another_number_of_ranks_or_another_backend_than_there_is_says_so(scenario):
    first, *others = scenario("arguments_that_do_not_fit")
    assert others == [first] * 2
    assert first["errors"][0] == "nproc=4, but torchrun started 3 ranks: leave nproc out."
    assert "did you mean 'gloo'" in first["errors"][1]
    assert first["after"] == [6, 6, 6]


def test_on_one_node_gloo_listens_on_loopback_only_and_the_environment_is_given_back(scenario):
    for found in scenario("where_gloo_listens"):
        assert {one for addresses in found["addresses"] for one in addresses} == {"127.0.0.1"}
        assert found["same_environment"]


def test_an_exception_in_one_rank_is_raised_in_all_and_the_world_stays_usable(scenario):
    expected = {
        "rank": 1,
        "kind": "raised",
        "first": "rank 1 raised KeyError: 'no such thing'",
        "after": [6, 6, 6],
    }
    assert scenario("an_exception_in_one_rank") == [expected] * 3


def test_a_child_of_a_worker_is_no_worker_and_starts_its_own_world(scenario):
    found = scenario("a_child_of_a_worker")
    assert [one["child"] for one in found] == ["[2, 2]\n", None, None]
    assert [one["own"] for one in found] == [[6, 6, 6]] * 3


def test_a_launch_inside_a_joined_rank_says_so(scenario):
    for found in scenario("a_launch_inside_a_rank"):
        assert "launch was called inside a rank" in found["first"]
        assert found["after"] == [6, 6, 6]


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


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_worker_behind_a_shell_is_a_worker(tmp_path):
    facts, done = torchrun(
        tmp_path, "write(launch(total))", wrapper=("sh", "-c", '"$0" "$@"; exit $?')
    )
    assert facts == [[3, 3]] * 2, done.stderr


def test_a_launch_that_one_rank_leaves_out_ends(tmp_path):
    facts, done = torchrun(
        tmp_path,
        """
        if me == 0:
            try:
                launch(total, timeout=3)
            except LaunchError as error:
                write({"kind": error.kind, "lines": str(error).splitlines()})
        else:
            time.sleep(8)
        """,
    )
    assert facts[0]["kind"] == "hung", done.stderr
    assert facts[0]["lines"][0].startswith("rank 1 hung")
