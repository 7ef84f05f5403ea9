"""The MPI backend: our own, over mpi4py, in worlds that launch starts and under mpiexec."""

import os
import runpy
import subprocess
import sys
import textwrap
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from collectives import check, launch
from collectives.backends import availability as backends
from collectives.bench import mpi as bench_mpi
from collectives.lesson import files
from collectives.matrix import claimed, selection
from collectives.matrix import run as matrix

pytestmark = pytest.mark.skipif(
    backends.missing_for_mpi() is not None, reason="needs the extra collectives[mpi]"
)


def mpi(fn, nproc=3, **options):
    return launch(fn, nproc, backend="mpi", **options)


def test_the_name_mpi_means_our_process_group():
    def fn(rank, world_size, device):
        return (
            dist.get_backend(),
            type(dist.group.WORLD).__name__,
            dist.get_rank(),
            dist.get_world_size(),
        )

    assert mpi(fn) == [("mpi", "ProcessGroupMPI", rank, 3) for rank in range(3)]


def test_other_backends_keep_their_names_beside_it():
    def fn(rank, world_size, device):
        names = [
            dist.Backend("gloo"),
            dist.Backend("GLOO"),
            dist.Backend("MPI"),
            dist.Backend(dist.Backend.MPI),
        ]
        group = dist.new_group(backend="gloo")
        x = torch.tensor([rank])
        dist.all_reduce(x, group=group)
        return names, x.item(), dist.get_backend(group)

    assert mpi(fn, 2) == [(["gloo", "gloo", "mpi", "mpi"], 1, "gloo")] * 2


# Reductions

INTEGERS = [
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
]
HALVES = [torch.float16, torch.bfloat16]
FLOATS = [*HALVES, torch.float32, torch.float64]


def reduce_all_kinds(rank, world_size, device):
    """The sums and products of 1, 2, 3 and the rest, for every dtype that has them."""
    op = dist.ReduceOp
    for dtype in [*INTEGERS, *FLOATS]:
        results = {op.SUM: 6, op.PRODUCT: 6, op.MIN: 1, op.MAX: 3}
        results |= {op.BAND: 0, op.BOR: 3, op.BXOR: 0} if dtype in INTEGERS else {op.AVG: 2}
        for kind, result in results.items():
            x = torch.full((5,), rank + 1, dtype=dtype)
            dist.all_reduce(x, op=kind)
            check(x, torch.full((5,), result, dtype=dtype), f"all_reduce({kind}, {dtype})")
    for kind, result in {
        op.SUM: 1,
        op.MAX: 1,
        op.BOR: 1,
        op.PRODUCT: 0,
        op.MIN: 0,
        op.BAND: 0,
        op.BXOR: 1,
    }.items():
        x = torch.tensor([rank == 0, rank != 0, True])
        dist.all_reduce(x, op=kind)
        of_two = kind not in (op.PRODUCT, op.MIN, op.BAND, op.BXOR)
        check(x, torch.tensor([bool(result), of_two, True]), f"all_reduce({kind}, bool)")
    for dtype in (torch.complex64, torch.complex128):
        x = torch.tensor([complex(rank, 1)], dtype=dtype)
        dist.all_reduce(x)
        check(x, torch.tensor([complex(3, 3)], dtype=dtype), f"all_reduce(SUM, {dtype})")


def test_every_dtype_is_reduced_by_every_operation_that_it_has():
    mpi(reduce_all_kinds)


@pytest.mark.parametrize(
    ("dtype", "op", "words"),
    [
        (torch.int64, "AVG", "mpi has no AVG for torch.int64.*use SUM"),
        (torch.bool, "AVG", "mpi has no AVG for torch.bool"),
        (torch.float32, "BAND", "mpi has no BAND for torch.float32, only SUM, PRODUCT, MIN, MAX"),
        (torch.float8_e4m3fn, "SUM", "mpi cannot reduce torch.float8_e4m3fn, it only moves it"),
    ],
    ids=str,
)
def test_what_mpi_cannot_reduce_is_refused_and_does_no_harm(dtype, op, words):
    def fn(rank, world_size, device):
        x = torch.ones(4).to(dtype)
        with pytest.raises(ValueError, match=words):
            dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
        y = torch.ones(1)
        dist.all_reduce(y)
        return y.item()

    assert mpi(fn, 2) == [2, 2]


def test_every_dtype_can_be_broadcast():
    def fn(rank, world_size, device):
        for dtype in [
            *INTEGERS,
            *FLOATS,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.bool,
            torch.complex64,
        ]:
            x = torch.arange(4).add(rank).to(torch.float32).to(dtype)
            expected = torch.arange(4).add(1).to(torch.float32).to(dtype)
            dist.broadcast(x, src=1)
            check(x.view(torch.uint8), expected.view(torch.uint8), f"broadcast({dtype})")

    mpi(fn, 2)


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


def test_memory_is_kept_until_a_call_that_nobody_waits_for_is_done():
    def fn(rank, world_size, device):
        if rank == 0:
            for number in range(50):
                # The Work and the tensor are dropped at once.
                dist.isend(torch.full((1000,), float(number)), dst=1)
            dist.barrier()
            return None
        received = [torch.empty(1000) for _ in range(50)]
        for x in received:
            dist.recv(x, src=0)
        dist.barrier()
        return [x.unique().tolist() for x in received]

    assert mpi(fn, 2)[1] == [[float(number)] for number in range(50)]


def test_noncontiguous_tensors_are_refused():
    def fn(rank, world_size, device):
        with pytest.raises(ValueError, match=r"contiguous tensors.*use contiguous\(\)"):
            dist.all_reduce(torch.ones(4, 4).t()[:, :2])

    mpi(fn, 2)


# Claims


def test_the_matrix_measures_what_is_claimed_of_mpi():
    chosen = selection.select(
        ["mpi"],
        ["all_reduce", "reduce_scatter"],
        ["float32", "int64", "complex64"],
        ["AVG", "PRODUCT"],
    )
    chosen += selection.select(
        ["mpi"], ["send", "broadcast", "monitored_barrier", "split_group"], quick=True
    )
    answers = list(matrix.measure(chosen, timeout=60.0))
    assert {answer["state"] for answer in answers} == {"works", "refuses"}
    assert claimed.differences(matrix.document(answers)) == []


def test_the_bench_times_gloo_mpi_and_mpi4py_in_the_same_ranks_and_proves_their_sums(monkeypatch):
    monkeypatch.setattr(bench_mpi, "SIZES", {"8 B": (8, 2, 10)})
    rows = bench_mpi.measure(1, lambda _: None)
    assert all(row.ratio > 0 for row in rows)
    assert {row.what for row in rows} == {"all_reduce, 4 ranks, 8 B"}
    names = [(row.first.split()[0], row.second.split()[0]) for row in rows]
    assert names == [("gloo", "mpi"), ("mpi", "mpi4py")]


# Groups, sources, splits


def test_groups_are_communicators_of_their_own():
    def fn(rank, world_size, device):
        odd, even = dist.new_group([1, 3]), dist.new_group([0, 2])
        mine = odd if rank % 2 else even
        x = torch.tensor([rank])
        dist.all_reduce(x, group=mine)
        dist.broadcast(y := torch.tensor([rank]), src=2 + rank % 2, group=mine)
        return x.item(), y.item(), mine.comm.size, dist.get_rank(mine)

    assert mpi(fn, 4) == [(2, 2, 2, 0), (4, 3, 2, 0), (2, 2, 2, 1), (4, 3, 2, 1)]


def test_a_group_can_be_made_by_its_members_alone():
    def fn(rank, world_size, device):
        if rank == 0:
            return None
        group = dist.new_group([1, 2], use_local_synchronization=True)
        dist.all_reduce(x := torch.tensor([rank]), group=group)
        return x.item()

    assert mpi(fn) == [None, 3, 3]


def test_a_group_that_a_member_does_not_come_to_is_given_up_at_the_time_limit():
    def fn(rank, world_size, device):
        if rank:
            with pytest.raises(RuntimeError):
                dist.new_group(timeout=timedelta(seconds=0.5))

    mpi(fn)


def test_a_message_from_any_source_names_its_source_as_a_global_rank():
    def fn(rank, world_size, device):
        group = dist.new_group([1, 2, 3])
        if rank == 3:
            x = torch.empty(1)
            return sorted((dist.recv(x, group=group), x.item()) for _ in range(2))
        if rank:
            dist.send(torch.tensor([10.0 * rank]), dst=3, group=group)
        return None

    assert mpi(fn, 4)[3] == [(1, 10.0), (2, 20.0)]


@pytest.mark.parametrize("length", [2, 4])
def test_a_message_of_another_length_than_its_tensor_is_an_error(length):
    def fn(rank, world_size, device):
        if rank == 0:
            dist.isend(torch.ones(3), dst=1)
        else:
            with pytest.raises(RuntimeError, match="rank 1/2: recv from rank 0 failed"):
                dist.recv(torch.ones(length), src=0)
        dist.barrier()

    mpi(fn, 2)


def test_uneven_pieces():
    def fn(rank, world_size, device):
        sizes = [1, 0, 3]
        gathered = [torch.full((size,), -1) for size in sizes]
        dist.all_gather(gathered, torch.full((sizes[rank],), rank))
        check(
            gathered,
            [torch.full((size,), source) for source, size in enumerate(sizes)],
            "all_gather",
        )
        send = torch.arange(6) + 10 * rank  # 1, 2 and 3 rows to ranks 0, 1 and 2
        taken = torch.full((3 * (rank + 1),), -1)
        dist.all_to_all_single(
            taken, send, output_split_sizes=[rank + 1] * 3, input_split_sizes=[1, 2, 3]
        )
        start = [0, 1, 3][rank]
        expected = torch.cat(
            [torch.arange(start, start + rank + 1) + 10 * source for source in range(3)]
        )
        check(taken, expected, "all_to_all_single")

    mpi(fn)


def test_objects_and_batches():
    def fn(rank, world_size, device):
        objects = [None] * world_size
        dist.all_gather_object(objects, {"rank": rank})
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        x = torch.empty(2)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((2,), float(rank)), right),
                dist.P2POp(dist.irecv, x, left),
            ]
        )
        for work in works:
            work.wait()
        with pytest.raises(ValueError, match="monitored_barrier is only implemented for GLOO"):
            dist.monitored_barrier()
        return objects, x[0].item()

    assert mpi(fn) == [
        ([{"rank": 0}, {"rank": 1}, {"rank": 2}], float((rank - 1) % 3)) for rank in range(3)
    ]


def test_a_group_that_timed_out_says_so_and_the_world_goes_on():
    def fn(rank, world_size, device):
        group = dist.new_group(timeout=timedelta(seconds=0.5))
        with pytest.raises(
            RuntimeError, match=f"rank {rank}/2: recv from rank {1 - rank}: Timed out after"
        ):
            dist.recv(torch.ones(1), src=1 - rank, group=group)
        with pytest.raises(RuntimeError, match="this group cannot be used any more"):
            dist.barrier(group=group)
        dist.all_reduce(x := torch.ones(1))
        return x.item()

    assert mpi(fn, 2) == [2, 2]


# Under mpiexec


def mpiexec(*command, ranks=3, **environ):
    done = subprocess.run(
        [backends.mpiexec(), "-n", str(ranks), sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=150,
        env=os.environ
        | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        | environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_of_its_own_joins_mpiexecs_world(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import torch, torch.distributed as dist
        import collectives.backends.register
        dist.init_process_group("mpi", init_method="mpi://")
        x = torch.tensor([dist.get_rank()])
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            print(dist.get_backend(), x.item(), flush=True)
        dist.destroy_process_group()
        """)
    )
    assert mpiexec(script) == "mpi 3\n"


def test_launch_joins_mpiexecs_world(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os, torch.distributed as dist
        from collectives import launch
        def fn(rank, world_size, device):
            return rank, dist.get_backend()
        results = [launch(fn, backend=backend) for backend in (None, "gloo", "mpi")]
        if os.environ["PMI_RANK"] == "0":
            print(results)
        """)
    )
    assert (
        mpiexec(script, ranks=2)
        == f"{[[(0, name), (1, name)] for name in ('mpi', 'gloo', 'mpi')]}\n"
    )


@pytest.mark.slow  # test_doors.py runs all lessons under mpiexec
def test_a_lesson_prints_over_mpi_what_it_prints_over_gloo(monkeypatch, capsys):
    lesson, printed = str(files.find("all_reduce")), {}
    for backend in ("gloo", "mpi"):
        monkeypatch.setattr(sys, "argv", [lesson, "-n", "3", "--backend", backend])
        runpy.run_path(lesson, run_name="__main__")
        printed[backend] = capsys.readouterr().out
    assert printed["gloo"].startswith("all_reduce: proved on all 3 ranks")
    assert printed["mpi"] == mpiexec(lesson) == printed["gloo"]
