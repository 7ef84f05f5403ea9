"""`collectives bench algorithms`: every algorithm, gloo and MPI in the same ranks, in turn."""

import json

import pytest
from typer.testing import CliRunner

from collectives import launch
from collectives.backends import availability as backends
from collectives.backends.algorithms import table
from collectives.backends.by_hand import choice, memory
from collectives.bench import algorithm_times, algorithms
from collectives.cli import app

US = 1e-6


def document(ranks=4, size=2**20, step=None, **microseconds):
    """What was measured at one size. The last round is disturbed: a median is not."""
    rounds = {name: [us * US, us * US, 1.0] for name, us in microseconds.items()}
    return {
        "ranks": ranks,
        "rounds": 3,
        "torch": "2.13.0",
        "machine": "a machine",
        "all_reduce": {str(size): rounds},
        "step": step or {},
    }


def shown(found):
    return [(row.first, row.second, row.ratio, row.target, row.met) for row in found]


def test_shared_memory_and_the_best_over_sockets_are_compared_with_gloo_and_mpi():
    found = document(memcpy=1, gloo=1000, mpi=50, shared_memory=100, ring=800, double_tree=400)
    assert shown(algorithm_times.rows(found)) == [
        ("gloo 1 ms", "shared_memory 0.1 ms", pytest.approx(10), ">= 5x", "yes"),
        ("gloo 1 ms", "double_tree 0.4 ms", pytest.approx(2.5), ">= 2x", "yes"),
        ("mpi 0.05 ms", "shared_memory 0.1 ms", pytest.approx(0.5), ">= 1x", "no"),
    ]


@pytest.mark.parametrize(
    ("size", "targets"),
    [
        (4, [">= 8x", ">= 4x"]),
        (2**16, [">= 8x", ">= 4x"]),
        (2**20, [">= 5x", ">= 2x"]),
        (2**24, [">= 2.5x", ">= 1x"]),
        (2**26, [">= 2.5x", ">= 0.9x"]),
    ],
)
def test_each_size_has_its_targets(size, targets):
    found = document(size=size, memcpy=1, gloo=8, shared_memory=4, ring=2)
    assert [row.target for row in algorithm_times.rows(found)] == targets


def test_two_ranks_are_compared_with_a_copy_of_the_tensor():
    found = document(2, 2**24, memcpy=10, gloo=100, shared_memory=14, ring=60)
    assert [row[3:] for row in shown(algorithm_times.rows(found))] == [
        (">= 3x", "yes"),
        ("-", "-"),
        (">= 0.67x", "yes"),
    ]


def test_a_step_of_training_has_its_target():
    step = {
        "DDP, width 32": {"gloo": [2e-3], "by_hand": [2.2e-3]},
        "FSDP2, width 32": {"gloo": [2e-3], "by_hand": [1e-3]},
    }
    found = document(step=step, memcpy=1, gloo=1, ring=1)
    assert [row[3:] for row in shown(algorithm_times.rows(found))[1:]] == [
        (">= 1x", "no"),
        (">= 1.3x", "yes"),
    ]


def test_a_round_takes_as_long_as_its_slowest_rank():
    by_rank = [{(4, "gloo"): [1.0, 2.0]}, {(4, "gloo"): [3.0, 1.0]}]
    assert algorithms._by_round(by_rank) == {"4": {"gloo": [3.0, 2.0]}}


def test_every_algorithm_is_timed_and_compared_in_the_same_ranks():
    names = algorithms.contenders(2)
    ours = set(table.ALGORITHMS["all_reduce"]) - {"hierarchical"}
    assert ours | {"memcpy", "gloo"} <= set(names)
    assert ("mpi" in names) == (backends.missing_for_mpi() is None)
    assert ("shared_memory" in names) == (memory.missing() is None)
    names = ["memcpy", "gloo", "ring"]  # the slow test takes all of them
    found = launch(algorithms.in_turn, 2, args=(2, [4, 16], names), backend="by_hand")
    assert list(found[0]) == [(size, name) for size in (4, 16) for name in names]
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in found[0].values())


def test_nobody_is_fast_and_wrong():
    def check(rank, n, device):
        import torch
        import torch.distributed as dist

        real = dist.all_reduce
        dist.all_reduce = lambda tensor, **group: (real(tensor, **group), tensor[0].add_(1))
        with pytest.raises(RuntimeError, match=f"rank {rank}: gloo summed 2 ones to 3"):
            algorithms._check(rank, n, torch.ones(3), "gloo", dist.group.WORLD)

    launch(check, 2, backend="gloo")


@pytest.mark.slow  # imports FSDP2, and the ranks of MPI import torch
def test_everything_is_measured():
    found = algorithms.measure(2, 1, [4], [8], lambda text: None)
    assert list(found["all_reduce"]["4"]) == algorithms.contenders(2)
    assert {what: list(by_name) for what, by_name in found["step"].items()} == {
        "DDP, width 8": ["gloo", "by_hand"],
        "FSDP2, width 8": ["gloo", "by_hand"],
    }
    assert algorithm_times.rows(found)


def test_the_command_prints_and_writes_what_was_measured(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    found = document(memcpy=1, gloo=1000, shared_memory=100, ring=800)
    asked = []
    monkeypatch.setattr(algorithms, "measure", lambda *words: asked.append(words[:4]) or found)
    files = tmp_path / "times.json", tmp_path / "times.png"
    words = ["--json", str(files[0]), "--plot", str(files[1])]
    done = CliRunner().invoke(app, ["bench", "algorithms", *words])
    assert done.exit_code == 0, done.output
    assert asked == [(4, 9, [4, 2**16, 2**20, 2**24, 2**26], [32, 256, 1024])]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["shared_memory", "0.1", "ms,", "10x"] in lines
    assert ["memcpy", "0.001", "ms"] in lines
    assert json.loads(files[0].read_text()) == found
    assert files[1].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nproc", "1"), "greater than or equal to 2"),
        (("--json", "/no/such/folder/x.json"), "there is no folder"),
        (("--plot", "x.jpeg"), "ends in .png or .svg"),
    ],
    ids=lambda one: "_".join(one) if isinstance(one, tuple) else "",
)
def test_bad_words_are_explained(words, message):
    done = CliRunner().invoke(app, ["bench", "algorithms", *words])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


def test_the_tables_in_the_page_are_those_of_the_file_beside_it():
    measured = json.loads(algorithm_times.MEASURED.read_text(encoding="utf-8"))
    assert algorithm_times.PART.read() == algorithm_times.markdown(measured)
    assert measured["rounds"] >= 9
    assert list(map(int, measured["all_reduce"])) == list(algorithms.SIZES)


def test_what_by_hand_takes_over_sockets_is_near_the_fastest_in_the_table_of_the_docs():
    found = json.loads(algorithm_times.MEASURED.read_text(encoding="utf-8"))
    for size, seconds in algorithm_times.medians(found["all_reduce"]).items():
        known = {
            name: took for name, took in seconds.items() if name in table.ALGORITHMS["all_reduce"]
        }
        taken = choice.choose(choice.Call("all_reduce", int(size), 4, choice.SOCKETS), False)
        assert known[taken] <= 1.25 * min(known.values()), (size, taken)
