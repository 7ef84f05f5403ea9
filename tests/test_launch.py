"""A launch that goes well: results in rank order, all kinds of functions, fresh ranks."""

import functools
import importlib.util
import os
import random
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy
import psutil
import pytest
import torch
import torch.distributed as dist

from collectives import launch
from collectives.launcher.server import default_start_method

METHODS = ["forkserver", "spawn"] if default_start_method() == "forkserver" else ["spawn"]
# A rank that is spawned imports torch anew: `spawn` is slow where the fork server is there.
default_method_or_slow = pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, marks=pytest.mark.slow if number else ())
        for number, method in enumerate(METHODS)
    ],
)


def rank_and_size(rank, world_size, device):
    return rank, world_size, str(device), dist.get_rank(), dist.get_world_size(), dist.get_backend()


def total(rank, world_size, device, start=0):
    x = torch.tensor([start + rank], device=device)
    dist.all_reduce(x)
    return x


@pytest.mark.parametrize("nproc", [1, 2, 3, 5])
def test_results_come_back_in_rank_order(nproc):
    assert launch(rank_and_size, nproc) == [
        (rank, nproc, "cpu", rank, nproc, "gloo") for rank in range(nproc)
    ]


def test_four_ranks_are_the_default():
    assert len(launch(total)) == 4


@pytest.mark.parametrize("method", METHODS)
def test_every_start_method_runs_the_same(method):
    assert [x.item() for x in launch(total, 2, start_method=method)] == [1, 1]


def test_arguments_reach_every_rank():
    assert [x.item() for x in launch(total, 3, args=(10,))] == [33, 33, 33]


def test_lambdas_closures_and_partials_can_be_launched():
    offset = torch.tensor([5])
    assert launch(lambda rank, world_size, device: (rank + offset).item(), 2) == [5, 6]
    assert [x.item() for x in launch(functools.partial(total, start=1), 2)] == [3, 3]


def test_a_class_of_the_caller_comes_back_as_the_same_class():
    class Point:
        def __init__(self, x):
            self.x = x

    results = launch(lambda rank, world_size, device: Point(rank), 2)
    assert [type(result) for result in results] == [Point, Point]
    assert [result.x for result in results] == [0, 1]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("registered", [True, False], ids=["in_sys_modules", "not_in_sys_modules"])
def test_functions_of_a_module_imported_by_path_can_be_launched(tmp_path, monkeypatch, registered):
    path = tmp_path / "loose_module.py"
    path.write_text(
        "FACTOR = 7\n"
        "def helper(rank):\n    return FACTOR * rank\n"
        "def fn(rank, world_size, device):\n    return helper(rank)\n"
    )
    module = load(path)
    if registered:
        monkeypatch.setitem(sys.modules, "loose_module", module)
    assert launch(module.fn, 2) == [0, 7]
    assert launch(lambda rank, world_size, device: module.helper(rank), 2) == [0, 7]


@default_method_or_slow
def test_a_script_without_a_main_guard_runs_once(tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        from collectives import launch
        print("the script runs")
        class Pair(tuple): pass
        def fn(rank, world_size, device):
            return Pair((rank, world_size))
        print(launch(fn, 2, start_method={method!r}))
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "the script runs\n[(0, 2), (1, 2)]\n", done.stderr


def test_a_program_from_standard_input_works():
    program = (
        "from collectives import launch\nprint(launch(lambda rank, world_size, device: rank, 2))"
    )
    done = subprocess.run(
        [sys.executable], input=program, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[0, 1]\n", done.stderr


def test_results_of_hundreds_of_megabytes_arrive_whole():
    results = launch(
        lambda rank, world_size, device: torch.full((75_000_000,), rank + 1, dtype=torch.int32), 2
    )
    assert [result.nbytes for result in results] == [300_000_000] * 2
    assert [bool((result == rank + 1).all()) for rank, result in enumerate(results)] == [True, True]


def test_launch_works_after_the_caller_has_used_openmp():
    torch.set_num_threads(2)
    (torch.randn(512, 512) @ torch.randn(512, 512)).sum()
    results = launch(
        lambda rank, world_size, device: (torch.ones(512, 512) @ torch.ones(512, 512)).sum().item(),
        2,
    )
    assert results == [512.0**3] * 2


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(None, id="default"),
        pytest.param(
            "by_hand",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="by_hand needs Linux"),
        ),
    ],
)
def test_twenty_launches_at_the_same_time_do_not_collide(backend):
    results = {}

    def one(number):
        found = launch(total, 2, args=(number,), backend=backend)
        results[number] = [x.item() for x in found]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [2 * number + 1] * 2 for number in range(20)}


# A rank that was forked is like a fresh process.


def test_a_rank_has_the_environment_of_the_caller_at_launch(monkeypatch):
    launch(rank_and_size, 1)
    monkeypatch.setenv("COLOUR", "green")
    assert launch(lambda *_: os.environ["COLOUR"], 1) == ["green"]
    monkeypatch.delenv("COLOUR")
    assert launch(lambda *_: os.environ.get("COLOUR"), 1) == [None]


def test_a_rank_has_the_directory_path_and_arguments_of_the_caller_at_launch(monkeypatch, tmp_path):
    launch(rank_and_size, 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program", "--flag"])
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside_the_caller.py").write_text("NAME = 'found'")
    assert launch(lambda *_: (os.getcwd(), sys.argv), 1) == [(str(tmp_path), ["program", "--flag"])]

    def imports(rank, world_size, device):
        import beside_the_caller

        return beside_the_caller.NAME

    assert launch(imports, 1) == ["found"]


def test_a_rank_reads_the_debug_level_anew(monkeypatch):
    def level(rank, world_size, device):
        return dist.get_debug_level().name

    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "OFF")
    assert launch(level, 1) == ["OFF"]
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    assert launch(level, 1) == ["DETAIL"]


def test_a_rank_reads_the_number_of_threads_anew(monkeypatch):
    def threads(rank, world_size, device):
        return torch.get_num_threads()

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = launch(threads, 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert launch(threads, 1) == [3]
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert launch(threads, 1) == before


@default_method_or_slow
def test_generators_differ_between_ranks_and_launches_as_in_fresh_processes(method):
    def draw(rank, world_size, device):
        return (
            torch.initial_seed(),
            torch.rand(1).item(),
            random.random(),
            float(numpy.random.rand()),
        )

    draws = launch(draw, 2, start_method=method) + launch(draw, 2, start_method=method)
    for generator in zip(*draws, strict=True):
        assert len(set(generator)) == 4


def test_seeding_by_hand_gives_the_same_numbers_in_every_rank():
    def draw(rank, world_size, device):
        torch.manual_seed(7)
        return torch.rand(1).item()

    assert len(set(launch(draw, 2) + launch(draw, 2))) == 1


def test_a_rank_sees_the_variables_that_torchrun_sets(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    names = [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "TORCHELASTIC_RUN_ID",
    ]
    found = launch(lambda *_: [os.environ.get(name) for name in names], 2)
    assert found == [["0", "0", "2", "2", None, None], ["1", "1", "2", "2", None, None]]


def test_nothing_that_one_rank_changes_is_seen_by_a_later_one():
    def spoil(rank, world_size, device):
        torch.set_default_dtype(torch.float64)
        dist.all_reduce = None
        sys.path.append("/nowhere")

    launch(spoil, 1)
    assert launch(
        lambda *_: (torch.get_default_dtype(), dist.all_reduce is None, "/nowhere" in sys.path), 1
    ) == [(torch.float32, False, False)]


def test_what_a_rank_prints_goes_where_the_caller_prints_now(capfd):
    with capfd.disabled():
        # This starts the fork server, unless it runs already. Its output goes to the real stdout.
        launch(rank_and_size, 1)
    launch(lambda *_: print("first"), 1)
    assert capfd.readouterr().out == "first\n"
    launch(lambda *_: print("second"), 1)
    assert capfd.readouterr().out == "second\n"


def test_a_rank_may_have_children_of_its_own():
    def fn(rank, world_size, device):
        loader = torch.utils.data.DataLoader(torch.arange(4), batch_size=2, num_workers=1)
        return [batch.tolist() for batch in loader]

    assert launch(fn, 1) == [[[0, 1], [2, 3]]]


# What it listens on, and what it leaves.


def listening(rank, world_size, device):
    dist.barrier()
    dist.new_group([0])
    addresses = [
        c.laddr.ip
        for c in psutil.Process().net_connections("tcp")
        if c.status == psutil.CONN_LISTEN
    ]
    dist.barrier()
    return addresses


@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_ranks_listen_on_loopback_only(monkeypatch, debug):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", debug)
    # The caller's choice would fail: on one machine it is not used.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    addresses = {address for found in launch(listening, 2) for address in found}
    assert addresses <= {"127.0.0.1", "::1"}


def test_the_caller_does_not_listen_at_all():
    release = threading.Event()
    seen = []
    # A control: if the test did not see this one, it would see nothing.
    control = socket.create_server(("127.0.0.1", 0))

    def watch():
        while not release.wait(0.005):
            seen.extend(
                c.laddr
                for c in psutil.Process().net_connections("tcp")
                if c.status == psutil.CONN_LISTEN
            )

    watcher = threading.Thread(target=watch)
    watcher.start()
    launch(lambda *_: time.sleep(0.1), 2)
    release.set()
    watcher.join()
    assert set(seen) == {control.getsockname()}
    control.close()


def test_a_launch_leaves_no_process_thread_descriptor_or_file(monkeypatch, tmp_path):
    launch(rank_and_size, 2)  # starts the server, which may stay
    process = psutil.Process()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = process.children(recursive=True), process.num_fds(), threading.active_count()
    for _ in range(3):
        launch(total, 2)
    assert (process.children(recursive=True), process.num_fds(), threading.active_count()) == before
    assert list(Path(tmp_path).iterdir()) == []
