"""A launch that goes wrong: it always ends, says which rank failed and why, and stays usable."""

import ctypes
import os
import pickle
import signal
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from our_backends import needs_by_hand, needs_mpi
from processes import children

from collectives import LaunchError, check, launch
from collectives.launcher import failure

# The essential promises hold on our own backends, too. None: the default of this machine.
BACKENDS = [None, pytest.param("by_hand", marks=[needs_by_hand, pytest.mark.slow])]
on_each_backend = pytest.mark.parametrize(
    "backend", [*BACKENDS, pytest.param("mpi", marks=needs_mpi)]
)


def works(rank, world_size, device):
    x = torch.tensor([rank])
    dist.all_reduce(x)
    return x.item()


@pytest.fixture(scope="module", autouse=True)
def launch_is_still_usable_at_the_end():
    """And in between: the next test launches, too."""
    launch(works, 1)  # starts the server, which may stay
    yield
    assert launch(works, 3) == [3, 3, 3]


@pytest.fixture(autouse=True)
def no_rank_is_left():
    before = children()
    yield
    assert children() <= before


def failing(fn, nproc=3, **options) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        launch(fn, nproc, **options)
    return caught.value


# A rank raises.


def raise_in_rank_1(rank, world_size, device):
    if rank == 1:
        raise KeyError("no such thing")
    dist.barrier()


@on_each_backend
def test_an_exception_names_its_rank_first_and_keeps_its_traceback(backend):
    error = failing(raise_in_rank_1, backend=backend)
    assert (error.rank, error.kind, error.exitcode, error.signal) == (1, "raised", None, None)
    assert str(error).startswith("rank 1 raised KeyError: 'no such thing'\n")
    assert 'raise KeyError("no such thing")' in error.traceback
    assert error.traceback in str(error)
    assert "collectives" not in error.traceback.replace(os.path.dirname(__file__), ""), (
        "frames of the launcher are noise"
    )


def test_the_others_are_stopped_at_once():
    def fn(rank, world_size, device):
        if rank == 0:
            raise ValueError("early")
        time.sleep(50)

    began = time.monotonic()
    assert failing(fn).rank == 0
    assert time.monotonic() - began < 10


def test_of_two_exceptions_the_first_is_reported():
    def fn(rank, world_size, device):
        time.sleep(0.1 * (world_size - rank))
        raise ValueError(f"from rank {rank}")

    assert failing(fn).rank == 2


def test_of_ranks_that_fail_a_proof_the_lowest_is_reported():
    def fn(rank, world_size, device):
        time.sleep(0.02 * (world_size - rank))
        check(rank, 3, "rank")

    assert failing(fn).rank == 0


class Odd(Exception):
    def __str__(self):
        raise KeyError


class Strange(Exception):
    def __init__(self):
        super().__init__(threading.Lock())  # it cannot be pickled


class OnlyThere:
    def __reduce__(self):
        return int, ("not here",)


def raise_it(error):
    raise error


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda *_: raise_it(Odd()), "raised Odd: (its text cannot be had: KeyError)"),
        (lambda *_: raise_it(Strange()), "raised Strange: <unlocked"),
        (lambda *_: raise_it(OSError()), "raised OSError\n"),
        (lambda *_: raise_it(ValueError("half of \ud800")), r"raised ValueError: half of \ud800"),
        (lambda *_: sys.exit(0), "raised SystemExit: 0"),
        (
            lambda *_: OnlyThere(),
            "returned a result that cannot be rebuilt in the parent (ValueError: invalid literal "
            "for int() with base 10: 'not here'): return tensors, numbers, lists.",
        ),
    ],
    ids=lambda value: "" if callable(value) else value[:30],
)
def test_an_odd_exception_or_result_names_its_rank_and_its_type(fn, said):
    error = failing(lambda rank, *_: rank == 1 and fn(), 2)
    assert str(error).startswith(f"rank 1 {said}")
    assert (error.rank, error.kind) == (1, "raised")
    assert error.error_type in said


def test_an_error_can_be_pickled_with_all_it_knows():
    error = failing(raise_in_rank_1)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.__dict__) == (str(error), error.__dict__)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_left_early_is_named_when_another_misses_it(backend):
    def fn(rank, world_size, device):
        if rank != 1:
            dist.all_reduce(torch.ones(1))

    error = failing(fn, backend=backend)
    assert error.kind == "raised"
    assert str(error).endswith("Had returned by then: rank 1.\n")


# A rank dies.


@on_each_backend
def test_death_by_a_signal_names_rank_and_signal(backend):
    def fn(rank, world_size, device):
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(50)
        dist.barrier()

    began = time.monotonic()
    error = failing(fn, backend=backend)
    assert time.monotonic() - began < 10
    assert (error.rank, error.kind, error.exitcode, error.signal) == (2, "died", -9, 9)
    assert str(error).startswith("rank 2 died: it was killed by SIGKILL (signal 9)")


@pytest.mark.parametrize(
    ("number", "said"), [(15, "SIGTERM (signal 15)"), (40, "signal 40")], ids=["named", "nameless"]
)
def test_a_signal_is_named_if_it_has_a_name(number, said):
    error = failure.died(1, -number, "", returned=False)
    assert (error.exitcode, error.signal) == (-number, number)
    assert str(error) == f"rank 1 died: it was killed by {said} before it returned a result"


def test_a_segmentation_fault_says_where():
    error = failing(lambda *_: ctypes.string_at(0), 1)
    assert (error.rank, error.kind, error.signal) == (0, "died", signal.SIGSEGV)
    assert "ctypes.string_at(0)" in str(error)
    assert "string_at" in error.stacks[0]


@pytest.mark.parametrize("status", [0, 3])
def test_os_exit_names_rank_and_status(status):
    def fn(rank, world_size, device):
        if rank == 1:
            os._exit(status)
        dist.barrier()

    error = failing(fn)
    assert (error.rank, error.kind, error.exitcode, error.signal) == (1, "died", status, None)
    assert str(error).startswith(
        f"rank 1 died: it ended its process with exit status {status} before it returned a result"
    )


@on_each_backend
def test_a_death_is_not_blamed_on_the_ranks_that_lost_their_peer(backend):
    def fn(rank, world_size, device):
        x = torch.ones(1)
        for _ in range(10_000):
            dist.all_reduce(x)
            if rank == 1 and _ == 50:
                os._exit(9)

    error = failing(fn, backend=backend)
    assert (error.rank, error.kind) == (1, "died")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda: os._exit(7), "it ended its process with exit status 7"),
        (lambda: os.kill(os.getpid(), 9), "it was killed by SIGKILL (signal 9)"),
    ],
    ids=["exit", "signal"],
)
def test_a_death_after_the_result_says_so(end, said):
    def fn(rank, world_size, device):
        def later():
            time.sleep(0.2)
            end()

        threading.Thread(target=later).start()

    assert str(failing(fn, 1)) == f"rank 0 died: {said} after it had returned its result"


# A rank hangs.


@on_each_backend
def test_a_hang_says_where_each_rank_stood(backend):
    """They all end, also if they ignore SIGTERM and keep the interpreter lock."""

    def fn(rank, world_size, device):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank == 0:
            dist.recv(torch.ones(1), src=2)
        if rank == 2:
            time.sleep(50)
        if rank == 3:
            ctypes.PyDLL(None).sleep(50)

    error = failing(fn, 4, timeout=4, backend=backend)
    first, *lines = str(error).splitlines()
    assert first == "rank 2 hung: not every rank had returned after 4 s"
    assert lines[0].endswith("in fn: dist.recv(torch.ones(1), src=2)")
    assert f"{os.path.basename(__file__)}:" in lines[0]
    assert lines[1] == "  rank 1  had returned"
    assert lines[2].endswith("in fn: time.sleep(50)")
    assert lines[3].endswith("in fn: ctypes.PyDLL(None).sleep(50)")
    assert (error.rank, error.kind, sorted(error.stacks)) == (2, "hung", [0, 2, 3])


def test_a_stopped_rank_is_ended_too():
    def fn(rank, world_size, device):
        os.kill(os.getpid(), signal.SIGSTOP)

    assert "did not answer" in str(failing(fn, 1, timeout=1))


def test_the_time_limit_holds_from_the_start_of_the_call():
    assert failing(works, 2, timeout=0.001).kind == "hung"


def test_a_world_in_which_all_return_but_one_cannot_end_gives_its_results(monkeypatch):
    monkeypatch.setattr("collectives.launcher.start.EXIT_TIMEOUT", 0.5)

    def fn(rank, world_size, device):
        threading.Thread(target=time.sleep, args=(50,)).start()
        return rank

    assert launch(fn, 2) == [0, 1]


# What cannot be pickled.


def test_a_function_or_arguments_that_cannot_be_pickled_are_bad_arguments():
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"cannot travel.*lock.*create inside the function"):
        launch(lambda *_: lock, 1)
    with pytest.raises(ValueError, match="works or its arguments cannot travel"):
        launch(works, 1, args=(lock,))


def test_a_result_that_cannot_be_pickled_names_its_rank_and_type():
    def fn(rank, world_size, device):
        return threading.Lock() if rank == 1 else None

    error = failing(fn, 2)
    assert (error.rank, error.kind) == (1, "raised")
    assert "The result (lock) cannot travel to the parent" in str(error)


def test_arguments_that_only_the_caller_can_rebuild_say_so():
    class Picky:
        def __reduce__(self):
            return os.stat, ("/a file that is nowhere",)

    error = failing(works, 1, args=(Picky(),))
    assert error.kind == "raised"
    assert "could not be rebuilt in the rank" in str(error)


# Bad arguments: an error that says what to use, before anything is started.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fn": 5}, "fn=5 cannot be called"),
        ({"nproc": 0}, r"nproc=0 is not a number of ranks: use a whole number from 1\."),
        ({"nproc": 2.5}, r"nproc=2\.5 is not a number of ranks"),
        ({"nproc": True}, "nproc=True is not a number of ranks"),
        ({"nproc": 10**20}, r"nproc=10+ is more than 1024, the most ranks that are started"),
        ({"args": 5}, r"args=5 is not a tuple: write args=\(5,\)"),
        ({"timeout": 0}, "timeout=0 is not a time limit"),
        ({"timeout": float("inf")}, "timeout=inf is not a time limit"),
        ({"timeout": 1e300}, r"timeout=1e\+300 is not a time limit: use .* at most 1e\+09\."),
        ({"backend": "glo"}, "'glo' is not known to this torch: did you mean 'gloo'"),
        ({"backend": "pigeon"}, "'pigeon' is not known to this torch: It knows .*gloo"),
        ({"device": "tpu"}, "device='tpu' is not known here: use 'cpu' or 'cuda'"),
        ({"backend": "nccl", "device": "cpu"}, "does not work on cpu: use device='cuda'"),
        ({"start_method": "teleport"}, "start_method='teleport' is not known here: use one of"),
        ({"record": "everything"}, "use one of calls, tensors"),
    ],
    ids=str,
)
def test_bad_arguments_are_errors_that_say_what_to_use(options, message):
    with pytest.raises(ValueError, match=message):
        launch(**{"fn": works} | options)


def test_launch_inside_a_rank_says_so():
    assert "launch was called inside a rank" in str(failing(lambda *_: launch(works, 2), 1))


def test_rank_in_the_environment_without_a_launcher_says_so(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match=r"RANK=0 is set, but neither torchrun, mpiexec nor srun"):
        launch(works, 1)


def test_without_mpi_the_error_says_why(monkeypatch):
    monkeypatch.setattr("collectives.backends.availability.missing_for_mpi", lambda: "mpi needs x")
    with pytest.raises(ValueError, match="backend='mpi' cannot run here: mpi needs x"):
        launch(works, 2, backend="mpi")
