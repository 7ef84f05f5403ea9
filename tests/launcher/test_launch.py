"""A launch that goes well: results in rank order, all kinds of functions, fresh ranks."""

import functools
import importlib.util
import linecache
import multiprocessing
import os
import random
import socket
import sys
import textwrap
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import numpy
import psutil
import pytest
import torch
import torch.distributed as dist
from processes import finished

from collectives import launch
from collectives.backends import claims


def rank_and_size(rank, world_size, device):
    return rank, world_size, str(device), dist.get_rank(), dist.get_world_size(), dist.get_backend()


def total(rank, world_size, device, start=0):
    x = torch.tensor([start + rank], device=device)
    dist.all_reduce(x)
    return x


@pytest.mark.parametrize("nproc", [1, 5, None])
def test_results_come_back_in_rank_order_and_four_ranks_are_the_default(nproc):
    size = nproc or 4
    assert launch(rank_and_size, nproc) == [
        (rank, size, "cpu", rank, size, "gloo") for rank in range(size)
    ]


def call_by_an_older_name(rank, world_size, device):
    with warnings.catch_warnings(record=True) as caught:
        dist.all_gather_into_tensor(torch.empty(world_size), torch.ones(1))
    return [str(warning.message).partition(" is ")[0] for warning in caught]


@pytest.mark.skipif(
    not claims.holds(">=2.13", torch.__version__) or claims.holds(">=2.15", torch.__version__),
    reason="an older torch has no other name for it, and torch 2.15 is silent",
)
def test_a_rank_hears_what_torch_warns_of():
    heard = launch(call_by_an_older_name, 1, backend="gloo")
    assert heard == [["`torch.distributed.all_gather_into_tensor`"]]


def gloo_threads_at_the_end(rank, world_size, device):
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    torch.optim.SGD([parameter]).step()
    dist.all_reduce(parameter.grad)
    dist.destroy_process_group()
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("pt_gloo_runloop\n")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads have names in /proc on Linux alone")
def test_a_destroyed_group_is_gone_also_after_an_optimizer():
    # The fork server of the tests may have what an optimizer imports; a spawned rank has not.
    found = launch(gloo_threads_at_the_end, 2, backend="gloo", start_method="spawn")
    assert found == [0, 0]


def test_lambdas_closures_partials_arguments_and_classes_of_the_caller_travel():
    class Point:
        def __init__(self, x):
            self.x = x

    offset = torch.tensor([5])
    results = launch(lambda rank, *_: Point(rank + offset), 2)
    assert [(type(result), result.x.item()) for result in results] == [(Point, 5), (Point, 6)]
    assert [x.item() for x in launch(functools.partial(total, start=1), 2)] == [3, 3]
    assert [x.item() for x in launch(total, 2, args=(10,))] == [21, 21]


@pytest.mark.parametrize("registered", [True, False], ids=["in_sys_modules", "not_in_sys_modules"])
def test_functions_of_a_module_imported_by_path_can_be_launched(tmp_path, monkeypatch, registered):
    path = tmp_path / "loose_module.py"
    path.write_text(
        "FACTOR = 7\n"
        "def helper(rank):\n    return FACTOR * rank\n"
        "def fn(rank, world_size, device):\n    return helper(rank)\n"
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if registered:
        monkeypatch.setitem(sys.modules, "loose_module", module)
    assert launch(module.fn, 2) == [0, 7]
    assert launch(lambda rank, world_size, device: module.helper(rank), 2) == [0, 7]
    assert not cloudpickle.list_registry_pickle_by_value()  # else later pickles would differ


def test_the_source_of_a_notebook_cell_is_known_in_its_ranks(monkeypatch):
    source = "import inspect\n\ndef cell(rank, *_):\n    return inspect.getsource(cell)\n"
    entry = len(source), None, source.splitlines(True), "<cell 1>"
    monkeypatch.setitem(linecache.cache, "<cell 1>", entry)
    exec(compile(source, "<cell 1>", "exec"), names := {"__name__": "__main__"})
    assert launch(names["cell"], 1) == [source.partition("\n\n")[2]]


@pytest.mark.slow  # by the fork server: test_launch_leaves_nothing.py
def test_a_script_without_a_main_guard_runs_once_although_ranks_are_spawned(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from collectives import launch
        print("the script runs")
        class Pair(tuple): pass
        def fn(rank, world_size, device):
            return Pair((rank, world_size))
        print(launch(fn, 2, start_method="spawn"))
        """)
    )
    done = finished(f"python {script}")
    assert done.stdout == "the script runs\n[(0, 2), (1, 2)]\n", done.stderr


@pytest.mark.slow
def test_a_program_from_standard_input_works():
    program = "from collectives import launch\nprint(launch(lambda rank, *_: rank, 2))"
    done = finished("python", input=program)
    assert done.stdout == "[0, 1]\n", done.stderr


@pytest.mark.slow
def test_results_of_hundreds_of_megabytes_arrive_whole():
    results = launch(
        lambda rank, world_size, device: torch.full((75_000_000,), rank + 1, dtype=torch.int32), 2
    )
    assert [result.nbytes for result in results] == [300_000_000] * 2
    assert [bool((result == rank + 1).all()) for rank, result in enumerate(results)] == [True, True]


def test_launch_works_after_the_caller_has_used_openmp(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def product(*_):
        return (torch.ones(512, 512) @ torch.ones(512, 512)).sum().item()

    torch.set_num_threads(2)
    assert [product(), *launch(product, 2)] == [512.0**3] * 3


NEEDS_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="by_hand needs Linux")


@pytest.mark.parametrize(
    "backend", [None, pytest.param("by_hand", marks=[NEEDS_LINUX, pytest.mark.slow])]
)
def test_ten_launches_at_the_same_time_do_not_collide(backend):
    def results(number):
        return [x.item() for x in launch(total, 2, args=(number,), backend=backend)]

    with ThreadPoolExecutor(10) as threads:
        assert list(threads.map(results, range(10))) == [[2 * n + 1] * 2 for n in range(10)]


# A rank that was forked is like a fresh process.


def test_a_rank_has_the_environment_directory_path_and_arguments_of_the_caller_at_launch(
    monkeypatch, tmp_path
):
    def found(rank, world_size, device):
        import beside_the_caller

        level, name = dist.get_debug_level().name, beside_the_caller.NAME
        return os.environ.get("COLOUR"), torch.get_num_threads(), level, name, os.getcwd(), sys.argv

    launch(rank_and_size, 1)  # the server is there already
    (tmp_path / "beside_the_caller.py").write_text("NAME = 'found'")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program", "--flag"])
    variables = {"COLOUR": "green", "OMP_NUM_THREADS": "3", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    same = "found", str(tmp_path), ["program", "--flag"]
    ((colour, threads, *others),) = launch(found, 1)
    assert (colour, others) == (None, ["OFF", *same])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch(found, 1) == [("green", 3, "DETAIL", *same)]
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert launch(found, 1) == [("green", threads, "DETAIL", *same)]


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
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


def test_a_rank_sees_the_variables_that_torchrun_sets(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]
    found = launch(lambda *_: [os.environ.get(name) for name in names], 2)
    assert found == [["0", "0", "2", "2", None], ["1", "1", "2", "2", None]]


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
        child = multiprocessing.Process(target=int)  # as a DataLoader with workers does
        child.start()
        child.join()
        return child.exitcode

    assert launch(fn, 1) == [0]


# What it listens on, and what it leaves.


def listening():
    connections = psutil.Process().net_connections("tcp")
    return [found.laddr for found in connections if found.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_ranks_listen_on_loopback_only(monkeypatch, debug):
    def addresses(rank, world_size, device):
        dist.barrier()
        dist.new_group([0])
        found = [address.ip for address in listening()]
        dist.barrier()
        return found

    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", debug)
    # The caller's choice would fail: on one machine it is not used.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    assert {found for rank in launch(addresses, 2) for found in rank} <= {"127.0.0.1", "::1"}


def test_the_caller_does_not_listen_at_all():
    release, seen = threading.Event(), []

    def watch():
        while not release.wait(0.005):
            seen.extend(listening())

    # A control: if the test did not see this one, it would see nothing.
    with socket.create_server(("127.0.0.1", 0)) as control:
        watcher = threading.Thread(target=watch)
        watcher.start()
        launch(lambda *_: time.sleep(0.1), 2)
        release.set()
        watcher.join()
        assert set(seen) == {control.getsockname()}


def test_a_launch_leaves_no_process_thread_descriptor_or_file(monkeypatch, tmp_path):
    launch(rank_and_size, 2)  # starts the server, which may stay
    process = psutil.Process()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = process.children(recursive=True), process.num_fds(), threading.active_count()
    for _ in range(3):
        launch(total, 2)
    assert (process.children(recursive=True), process.num_fds(), threading.active_count()) == before
    assert list(Path(tmp_path).iterdir()) == []
