"""launch in the world of a launcher: the same function, the same results, and the launcher's world is left as it was."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROLOGUE = """
import json, os, sys, time
import psutil, torch
import torch.distributed as dist
from collectives import LaunchError, launch

me = int(os.environ["RANK"])
def tell(**facts):
    with open(os.path.join(sys.argv[1], f"facts-{me}.json"), "w") as file:
        json.dump(facts, file)
def total(rank, world_size, device):
    x = torch.tensor([rank + 1])
    dist.all_reduce(x)
    return x.item()
"""


def torchrun(
    tmp_path: Path,
    body: str,
    nproc: int = 2,
    wrapper: list[str] | None = None,
    more: dict[str, str] | None = None,
):
    """Run a program under torchrun; return what each rank told, and the finished torchrun."""
    program = tmp_path / "program.py"
    program.write_text(PROLOGUE + textwrap.dedent(body))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(nproc)]
    command += [
        *(["--no-python", *wrapper, sys.executable] if wrapper else []),
        str(program),
        str(tmp_path),
    ]
    environ = {
        name: value for name, value in os.environ.items() if name != "TORCH_DISTRIBUTED_DEBUG"
    } | (more or {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environ)
    files = [tmp_path / f"facts-{rank}.json" for rank in range(nproc)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files], done


def test_every_rank_gets_the_full_list_any_number_of_times_and_big_results_too(tmp_path):
    facts, done = torchrun(
        tmp_path,
        """
        results = [launch(total) for _ in range(5)] + [launch(total, 3)]
        big = launch(lambda rank, world_size, device: torch.full((10_000_000,), rank, dtype=torch.int32))
        tell(results=results, big=[[len(x), int(x.min()), int(x.max())] for x in big], initialised=dist.is_initialized())
        """,
        nproc=3,
    )
    big = [[10_000_000, rank, rank] for rank in range(3)]
    assert facts == [{"results": [[6, 6, 6]] * 6, "big": big, "initialised": False}] * 3, (
        done.stderr
    )


def test_a_group_of_the_callers_is_used_and_left_alone(tmp_path):
    facts, done = torchrun(
        tmp_path,
        """
        dist.init_process_group("gloo")
        group = dist.group.WORLD
        same = launch(lambda *_: dist.group.WORLD is group)
        x = torch.ones(1)
        dist.all_reduce(x)
        tell(same=same, after=x.item(), initialised=dist.is_initialized())
        dist.destroy_process_group()
        """,
    )
    assert facts == [{"same": [True, True], "after": 2.0, "initialised": True}] * 2, done.stderr


def test_another_number_of_ranks_or_another_backend_than_there_is_says_so(tmp_path):
    facts, done = torchrun(
        tmp_path,
        """
        said = []
        for options in ({"nproc": 3}, {"backend": "glo"}):
            try:
                launch(total, **options)
            except ValueError as error:
                said.append(str(error))
        tell(said=said, still=launch(total))
        """,
    )
    assert facts[0] == facts[1]
    assert facts[0]["said"][0] == "nproc=3, but torchrun started 2 ranks: leave nproc out."
    assert "did you mean 'gloo'" in facts[0]["said"][1]
    assert facts[0]["still"] == [3, 3], done.stderr


def test_on_one_node_gloo_listens_on_loopback_only_and_the_environment_is_given_back(tmp_path):
    facts, done = torchrun(
        tmp_path,
        """
        def listening(rank, world_size, device):
            dist.barrier()
            return [c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        before = dict(os.environ)
        tell(addresses=launch(listening), same=dict(os.environ) == before)
        """,
        more={
            "GLOO_SOCKET_IFNAME": "nowhere0"
        },  # the caller's choice would fail: ours is what counts on one machine
    )
    assert {address for addresses in facts[0]["addresses"] for address in addresses} <= {
        "127.0.0.1"
    }, done.stderr
    assert facts[0]["same"]


def test_an_exception_in_one_rank_is_told_to_all_and_the_world_stays_usable(tmp_path):
    facts, done = torchrun(
        tmp_path,
        """
        def fails(rank, world_size, device):
            if rank == 1:
                raise KeyError("no such thing")
            dist.barrier()
        try:
            launch(fails)
        except LaunchError as error:
            tell(rank=error.rank, kind=error.kind, first=str(error).splitlines()[0], after=launch(total))
        """,
    )
    expected = {
        "rank": 1,
        "kind": "raised",
        "first": "rank 1 raised KeyError: 'no such thing'",
        "after": [3, 3],
    }
    assert facts == [expected] * 2, done.stderr


def test_past_the_time_limit_it_says_where_each_rank_stood(tmp_path):
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
            tell(rank=error.rank, kind=error.kind, lines=str(error).splitlines())
        """,
    )
    assert done.returncode != 0
    assert facts[1] is None, "a rank that sleeps on is ended"
    assert (facts[0]["rank"], facts[0]["kind"]) == (1, "hung")
    assert facts[0]["lines"][1].endswith("in hangs: dist.barrier()")
    assert facts[0]["lines"][2].endswith("in hangs: time.sleep(60)")
    assert "time.sleep" not in done.stdout
    assert "in hangs" in done.stderr


def test_a_child_of_a_worker_is_no_worker_and_starts_its_own_world(tmp_path):
    facts, done = torchrun(
        tmp_path,
        """
        import subprocess
        program = "from collectives import launch\\nprint(launch(lambda rank, world_size, device: world_size, 3))"
        tell(child=subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout, own=launch(total))
        """,
    )
    assert facts == [{"child": "[3, 3, 3]\n", "own": [3, 3]}] * 2, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_worker_behind_a_shell_is_a_worker(tmp_path):
    facts, done = torchrun(
        tmp_path, "tell(own=launch(total))", wrapper=["sh", "-c", '"$0" "$@"; exit $?']
    )
    assert facts == [{"own": [3, 3]}] * 2, done.stderr


def test_a_launch_inside_a_joined_rank_says_so(tmp_path):
    facts, done = torchrun(
        tmp_path,
        """
        try:
            launch(lambda *_: launch(total))
        except LaunchError as error:
            tell(first=str(error).splitlines()[0])
        """,
    )
    assert "launch was called inside a rank" in facts[0]["first"], done.stderr


def test_a_launch_that_one_rank_leaves_out_ends(tmp_path):
    facts, done = torchrun(
        tmp_path,
        """
        if me == 0:
            try:
                launch(total, timeout=3)
            except LaunchError as error:
                tell(kind=error.kind, lines=str(error).splitlines())
        else:
            time.sleep(8)
        """,
    )
    assert facts[0]["kind"] == "hung", done.stderr
    assert facts[0]["lines"][0].startswith("rank 1 hung")
