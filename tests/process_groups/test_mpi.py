"""The MPI backend: our own, over mpi4py, in worlds that launch starts and under mpiexec."""

import os
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from our_backends import in_ranks, needs_mpi
from processes import finished

from collectives import LaunchError, check, launch
from collectives.backends import availability

pytestmark = needs_mpi


def mpi(fn, nproc=3, **options):
    return launch(fn, nproc, backend="mpi", **options)


def test_the_name_mpi_means_our_process_group_and_other_backends_keep_theirs():
    def fn(rank, world_size, device):
        names = ["gloo", "GLOO", "MPI", dist.Backend.MPI]
        group = dist.new_group(backend="gloo")
        dist.all_reduce(x := torch.tensor([rank]), group=group)
        own = type(dist.group.WORLD).__name__, dist.get_backend(), dist.get_rank()
        return *own, [str(dist.Backend(name)) for name in names], dist.get_backend(group), x.item()

    found = mpi(fn, 2)
    for rank, (*own, names, other, total) in enumerate(found):
        assert own == ["ProcessGroupMPI", "mpi", rank]
        assert (names, other, total) == (["gloo", "gloo", "mpi", "mpi"], "gloo", 1)


# Reductions


@in_ranks(2, "mpi")
def test_what_mpi_cannot_reduce_is_refused_and_does_no_harm(rank, world_size, device):
    for dtype, op, words in (
        (torch.int64, "AVG", "mpi has no AVG for torch.int64.*use SUM"),
        (torch.bool, "AVG", "mpi has no AVG for torch.bool"),
        (torch.float32, "BAND", "mpi has no BAND for torch.float32, only SUM, PRODUCT, MIN, MAX"),
        (torch.float8_e4m3fn, "SUM", "mpi cannot reduce torch.float8_e4m3fn, it only moves it"),
    ):
        x = torch.ones(4).to(dtype)
        with pytest.raises(ValueError, match=words):
            dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
        dist.all_reduce(y := torch.ones(1))
        assert y.item() == 2


# Messages go from and to the tensor's own memory


def test_messages_go_from_tensor_to_tensor_without_a_copy():
    """Measured by the memory that a rank uses beyond its tensors while it sends 64 MiB."""
    import resource

    def fn(rank, world_size, device):
        n = 2**24
        x, pieces = (
            torch.full((n,), float(rank)),
            [torch.empty(n).fill_(-1) for _ in range(world_size)],
        )
        dist.barrier()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        dist.all_gather(pieces, x)
        dist.broadcast(x, src=1)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        check(
            [piece[:: 2**20] for piece in pieces],
            [torch.full((16,), float(r)) for r in range(world_size)],
            "all_gather",
        )
        return (after - before) * 1024 / x.nbytes

    assert all(copies < 0.5 for copies in mpi(fn, 2, timeout=120))


@in_ranks(2, "mpi")
def test_memory_is_kept_until_a_call_that_nobody_waits_for_is_done(rank, world_size, device):
    if rank == 0:
        for number in range(50):
            # The Work and the tensor are dropped at once.
            dist.isend(torch.full((1000,), float(number)), dst=1)
    else:
        received = [torch.empty(1000) for _ in range(50)]
        for x in received:
            dist.recv(x, src=0)
        assert [x.unique().tolist() for x in received] == [[float(number)] for number in range(50)]
    dist.barrier()


# Groups


@in_ranks(3, "mpi")
def test_a_group_can_be_made_by_its_members_alone(rank, world_size, device):
    if rank:
        group = dist.new_group([1, 2], use_local_synchronization=True)
        dist.all_reduce(x := torch.tensor([rank]), group=group)
        assert x.item() == 3


@in_ranks(3, "mpi")
def test_a_group_that_a_member_does_not_come_to_is_given_up_at_the_time_limit(
    rank, world_size, device
):
    if rank:
        with pytest.raises(RuntimeError):
            dist.new_group(timeout=timedelta(seconds=0.5))


# Under mpiexec


IN_MPIEXECS_WORLD = """
import os, torch, torch.distributed as dist
import collectives.backends.register
from collectives import launch

dist.init_process_group("mpi", init_method="mpi://")
x = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(x)
own = dist.get_backend(), x.item()
dist.destroy_process_group()

def fn(rank, world_size, device):
    return rank, dist.get_backend()

results = [launch(fn, backend=backend) for backend in (None, "gloo", "mpi")]
if os.environ["PMI_RANK"] == "0":
    print(own, results)
"""


def test_a_script_of_its_own_and_then_launch_join_mpiexecs_world():
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    words = [availability.mpiexec(), "-n", 2, sys.executable, "-c", IN_MPIEXECS_WORLD]
    done = finished(words, env=as_root)
    launched = [[(0, name), (1, name)] for name in ("mpi", "gloo", "mpi")]
    assert (done.stdout, done.returncode) == (f"('mpi', 3) {launched}\n", 0), done.stderr


# Without the extra, and with a broken process manager

# `python -m collectives` where mpi4py cannot be imported.
WITHOUT_MPI4PY = (
    "import sys, runpy; sys.modules['mpi4py'] = None; "
    "runpy.run_module('collectives', run_name='__main__', alter_sys=True)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["run barrier --backend mpi", "matrix --backend mpi --quick"], ids=["run", "matrix"]
)
def test_without_mpi4py_the_command_says_which_extra_to_install(command):
    done = finished(["python", "-c", WITHOUT_MPI4PY, *command.split()])
    assert "mpi needs mpi4py, which is not here: pip install 'torch-collectives[mpi]'" in " ".join(
        (done.stdout + done.stderr).split()
    )
    assert done.returncode == 3


def test_without_mpiexec_too(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    said = r"mpi needs mpiexec, which is not here: pip install 'torch-collectives\[mpi\]'"
    with pytest.raises(ValueError, match=said):
        launch(print, 2, backend="mpi")


class MalformedLine:
    """An argument that writes to the process manager of its rank before MPI starts there."""

    def __reduce__(self):
        return write_malformed_line, ()


def write_malformed_line() -> None:
    if os.environ["PMI_RANK"] == "1":
        os.write(int(os.environ["PMI_FD"]), b"no command\n")


def test_a_line_that_is_not_pmi_ends_the_launch():
    with pytest.raises(LaunchError) as caught:
        mpi(lambda rank, world_size, device, line: None, args=(MalformedLine(),))
    assert (caught.value.rank, caught.value.kind) == (1, "died"), caught.value
