"""`collectives diagnose` on ranks that never meet: which of them is elsewhere, and why."""

import re

import pytest
from diagnosing import PROGRAM, diagnose, program, script
from processes import free_port

# Ranks may load torch at different speeds; in seconds.
PATIENT = 8

JOINS = """
    import os
    import torch.distributed as dist
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    {}
    method = os.environ.get("METHOD")
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size)  # line 7
    dist.barrier()
"""
LINE = 7


def started_as(numbers, tmp_path, mistake="pass", n=3):
    """The verdict on ranks started by a shell, with these numbers as their RANK."""
    command = script(tmp_path, JOINS.format(mistake))
    ranks = " ".join(map(str, numbers))
    shell = f"for RANK in {ranks}; do export RANK; {' '.join(command)} & done; wait"
    places = ["MASTER_ADDR=127.0.0.1", f"MASTER_PORT={free_port()}", f"WORLD_SIZE={n}"]
    return diagnose(tmp_path, "env", *places, "sh", "-c", shell, hang_after=PATIENT)[0]


@pytest.mark.slow  # as another port, below
def test_two_processes_with_the_same_rank_are_reported(tmp_path):
    verdict = started_as([0, 1, 1], tmp_path)
    assert verdict["verdict"] == "hang", verdict["says"]
    assert re.search(
        "rank  2 +no process has come with this rank, but two as rank 1", verdict["says"]
    ), verdict["says"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "field", "told"),
    [
        ("size += rank == 1", "world_size", "world_size=3 on ranks 0,2; world_size=4 on rank 1"),
        (
            f"import time; time.sleep({PATIENT + 4} * (rank == 1)); size += rank == 1",
            "world_size",
            "world_size=3 on ranks 0,2; world_size=4 on rank 1",
        ),
        (
            'os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + (rank == 1))',
            "store",
            r"127.*\d on ranks 0,2; 127.*\d on rank 1",
        ),
    ],
    ids=["world size", "world size of a rank that comes late", "port"],
)
def test_a_rank_with_another_world_size_or_port_is_named(mistake, field, told, tmp_path):
    verdict = started_as(range(3), tmp_path, mistake)
    assert (verdict["verdict"], verdict["field"]) == ("mismatch", field), verdict["says"]
    assert [(one["rank"], one["line"]) for one in verdict["guilty"]] == [(1, LINE)]
    assert re.search(told, verdict["says"])


@pytest.mark.slow  # as two processes with the same rank
def test_ranks_that_join_under_the_number_of_another_rank_are_named(tmp_path):
    """As with LOCAL_RANK, on the second machine of two."""
    verdict = started_as(
        range(4), tmp_path, f"rank, os.environ['METHOD'] = rank % 2, 'file://{tmp_path}/store'", n=4
    )
    assert verdict["says"].startswith("hang: ranks 2,3 join as ranks 0,1, which others are"), (
        verdict["says"]
    )
    assert [(one["rank"], one["line"]) for one in verdict["guilty"]] == [(2, LINE), (3, LINE)]


@pytest.mark.slow  # it waits; test_rank_state.py has the rule
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_has_not_joined_yet_is_shown_with_its_line(method, tmp_path):
    """Only its launcher knows which rank it will be."""
    line = PROGRAM.read_text().splitlines().index("        time.sleep(14)  # here it is") + 1
    verdict, done = diagnose(tmp_path, *program("joins_late", "3", method), hang_after=PATIENT)
    assert verdict["verdict"] == "ok", verdict["says"]
    assert "slow: rank 1 has not joined init_process_group #1 of group WORLD\n" in done.stderr
    assert re.search(rf"rank  1 +computing +.*faulty_program.py:{line} in start\n", done.stderr), (
        done.stderr
    )
