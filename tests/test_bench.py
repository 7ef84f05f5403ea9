"""`collectives bench` computes ratios and targets from what it measured."""

import multiprocessing
import subprocess
import sys
import time

import psutil
import pytest

from collectives import launch
from collectives.bench import calls, timing
from collectives.bench import launch as bench
from collectives.bench import matrix as bench_matrix
from collectives.bench import mpi as bench_mpi

FOUND = {
    "spawn": [4.0, 4.4, 90.0],
    "launch": [0.2, 0.1, 0.3],
    "import torch": [1.0],
    "lesson": [2.5],
    "torchrun": [5.0],
    "memory, spawn": [100 * 2**20],
    "memory, forkserver": [10 * 2**20],
    "memory, server": [60 * 2**20],
}


def test_bench_compares_medians_and_says_which_targets_were_met():
    rows = bench.rows(FOUND)
    assert [(round(row.ratio, 1), row.met) for row in rows] == [
        (22.0, "yes"),
        (2.5, "no"),
        (2.0, "yes"),
        (10.0, "-"),
    ]
    assert rows[0].first == "torch.multiprocessing.spawn 4.40 s"
    assert rows[3].target == "4 ranks save 300 MiB, their server's own counted"


@pytest.mark.slow  # spawn imports torch in each rank
def test_bench_measures_both_ways_of_starting_ranks_in_each_round_and_their_memory():
    heard = []
    found = bench.launches(1, heard.append, ranks=1)
    assert {name: len(values) for name, values in found.items() if "memory" not in name} == {
        "spawn": 1,
        "launch": 1,
    }
    assert found["spawn"][0] > found["launch"][0] > 0
    if "forkserver" in multiprocessing.get_all_start_methods():
        assert found["memory, spawn"][0] > found["memory, forkserver"][0] > 0
    assert heard[0] == "launches, round 1 of 1"


def test_bench_compares_noted_calls_by_the_best_of_each_side_because_bad_moments_do_not_count():
    (row,) = calls.rows(
        {"all_reduce": [(10.0, 16.0), (100.0, 106.0), (10.0, 15.0), (11.0, 900.0), (90.0, 17.0)]}
    )
    assert (row.ratio, row.target, row.met) == (1.5, "<= 20 us more: 5.0 us", "yes")


@pytest.mark.parametrize("ranks", [1, 2])
def test_bench_times_plain_and_noted_calls_in_the_same_ranks(ranks):
    for pairs in launch(calls.cost, ranks, args=(2,), backend="gloo", diagnose=False):
        assert len(pairs) == 2
        assert min(min(pair) for pair in pairs) > 0


def test_bench_leaves_memory_out_where_there_is_no_forkserver():
    assert (
        len(bench.rows({name: values for name, values in FOUND.items() if "memory" not in name}))
        == 3
    )


@pytest.mark.parametrize(
    ("full", "quick", "expected"),
    [(60.0, 12.0, [(50.0, "yes"), (22.5, "no")]), (80.0, 8.0, [(37.5, "no"), (33.8, "yes")])],
)
def test_bench_of_the_matrix_compares_cells_with_spawn(full, quick, expected):
    names = "the full gloo/CPU matrix", "--quick"
    rows = bench_matrix.rows(
        dict(zip(names, (full, quick), strict=True)), dict(zip(names, (1000, 90), strict=True)), 3.0
    )
    assert [(round(row.ratio, 1), row.met) for row in rows] == expected


@pytest.mark.parametrize(
    ("mpi", "mpi4py", "met"),
    [(0.001, 0.0007, "yes"), (0.001, 0.0006, "no"), (8e-5, 3e-5, "yes"), (9e-5, 2e-5, "no")],
)
def test_bench_of_mpi_compares_the_same_calls_at_three_sizes(mpi, mpi4py, met):
    values = {"gloo": 9 * mpi, "mpi": mpi, "mpi4py": mpi4py}
    rows = bench_mpi.rows(
        {(size, what): value for size in bench_mpi.SIZES for what, value in values.items()}
    )
    assert [(row.ratio, row.target, row.met) for row in rows[::2]] == [
        (pytest.approx(9), ">= 2x", "yes"),
        (pytest.approx(9), ">= 10x", "no"),
        (pytest.approx(9), ">= 10x", "no"),
    ]
    for row in rows[1::2]:
        assert (row.ratio, row.met) == (pytest.approx(mpi / mpi4py), met)
        assert row.target == "<= 1.5x or 60 µs more"


def test_bench_ends_what_a_failed_measurement_started():
    start = "subprocess.Popen([sys.executable, '-c', 'input()'])"
    code = f"import subprocess, sys; print({start}.pid, flush=True); input()"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    try:
        with timing.process([sys.executable, "-c", code], **streams) as process:
            grandchild = psutil.Process(int(process.stdout.readline()))
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert process.returncode is not None
    deadline = time.monotonic() + 5
    while grandchild.is_running() and grandchild.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)
