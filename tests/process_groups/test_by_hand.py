"""The backend by_hand: real DDP and FSDP2 on it, its algorithms, and how its calls fail."""

import multiprocessing
import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from by_hand_groups import by_hand, every_algorithm, group_of
from our_backends import in_ranks, needs_by_hand
from processes import finished

from collectives import LaunchError, check
from collectives.process_groups.by_hand import choice, memory

pytestmark = needs_by_hand

LINKS = ("shared_memory", "sockets")


# Algorithms


def test_every_algorithm_can_be_forced_and_is_right():
    by_hand(every_algorithm, 4, args=(choice.names(),))


@pytest.mark.parametrize("links", LINKS)
def test_all_ranks_get_the_same_bits_in_every_run(links):
    def fn(rank, world_size, device):
        group = group_of(links)
        found = []
        for length in (100, 500_000):
            for _ in range(2):
                generator = torch.Generator().manual_seed(rank)
                x = torch.randn(length, generator=generator)
                dist.all_reduce(x, group=group)
                found.append(x[:100].tolist())
        return found

    first, *others = by_hand(fn, 4)
    assert first[0] == first[1]
    assert first[2] == first[3]
    assert all(other == first for other in others)


def test_the_environment_forces_an_algorithm(monkeypatch):
    monkeypatch.setenv("COLLECTIVES_ALGORITHM", "ring")

    def fn(rank, world_size, device):
        own, other = dist.group.WORLD, group_of("binomial_tree")
        for group in (own, other):
            dist.all_reduce(torch.ones(4), group=group)
        return own.algorithm, own.shared, other.algorithm

    assert by_hand(fn, 2) == [("ring", None, "binomial_tree")] * 2


def test_an_unknown_algorithm_is_refused_with_the_nearest_name(monkeypatch):
    monkeypatch.setenv("COLLECTIVES_ALGORITHM", "rings")
    with pytest.raises(LaunchError, match="no algorithm 'rings': did you mean 'ring'"):
        by_hand(lambda rank, world_size, device: None, 2)


@in_ranks(3, "by_hand")
def test_an_algorithm_that_a_group_cannot_take_is_refused_on_all_ranks(rank, world_size, device):
    with pytest.raises(ValueError, match=r"no algorithm 'tree': .*shared_memory, sockets, ring"):
        group_of("tree")
    with pytest.raises(ValueError, match=r"pg_options='ring' is not for by_hand: use Options"):
        dist.new_group(backend="by_hand", pg_options="ring")
    group = group_of("recursive_doubling")
    pieces = [torch.ones(2) for _ in range(world_size)]
    with pytest.raises(ValueError, match="needs a power of two of ranks, not 3: take ring"):
        dist.all_gather(pieces, torch.ones(2), group=group)
    dist.all_reduce(x := torch.ones(1), group=group)  # it has another one for that
    assert x.item() == 3.0


@in_ranks(3, "by_hand")
def test_ranks_that_disagree_about_the_algorithm_are_refused_on_all_of_them(
    rank, world_size, device
):
    with pytest.raises(ValueError, match=r"disagree .*rank 0: ring, rank 1: shared_memory"):
        group_of("ring" if rank == 0 else "shared_memory")


@in_ranks(1, "by_hand")
def test_a_group_of_one_works_with_every_algorithm(rank, world_size, device):
    for name in (None, *choice.names()):
        group = group_of(name)
        x, y = torch.arange(3.0), torch.empty(3)
        dist.all_reduce(x, group=group)
        dist.all_gather_single(y, x, group=group)
        dist.barrier(group)
        check(y, torch.arange(3.0), f"all_gather by {name}")


# Mistakes: each call ends on every rank, with an error that says why


# What ranks do that do not agree, and what one of them says.
MISTAKES = {
    "length": (lambda rank, group: dist.all_reduce(torch.ones(4 + rank), group=group), "float32 x"),
    "size": (lambda rank, group: dist.all_reduce(torch.ones(10 ** (3 * rank)), group=group),
             "float32 x"),
    "dtype": (lambda rank, group: dist.all_reduce(torch.ones(4).to(
                  torch.int32 if rank else torch.float32), group=group), "int32 x 4"),
    "op": (lambda rank, group: dist.all_reduce(
               torch.ones(4), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM, group=group),
           "all_reduce MAX"),
    "call": (lambda rank, group: dist.barrier(group=group) if rank else dist.broadcast(
                 torch.ones(4), src=0, group=group), "broadcast from 0"),
    "end of a long list": (lambda rank, group: dist.all_reduce_coalesced(
                               [torch.ones(4)] * 12 + [torch.ones(4 + rank)], group=group),
                           "float32 x 4"),
}  # fmt: skip


@pytest.mark.parametrize("links", LINKS)
def test_ranks_that_make_different_calls_say_what_the_other_did(links):
    def fn(rank, world_size, device):
        found = []
        for mistake, _ in MISTAKES.values():
            group = group_of(links, timeout=timedelta(seconds=3))
            try:
                mistake(rank, group)
                dist.barrier(group=group)
                found.append("no error")
            except RuntimeError as error:
                found.append(str(error))
            dist.barrier()
        return found

    for name, *errors in zip(MISTAKES, *by_hand(fn, 3), strict=True):
        assert "no error" not in errors, name
        assert any(MISTAKES[name][1] in text for text in errors), (name, errors)


@pytest.mark.parametrize("links", LINKS)
@in_ranks(2, "by_hand")
def test_a_rank_that_does_not_come_is_named_at_the_time_limit(rank, world_size, device, links):
    group = group_of(links, timeout=timedelta(seconds=0.7))
    if rank == 1:
        dist.barrier()
        return
    with pytest.raises(RuntimeError, match=r"all_reduce: Timed out after 0.7 s waiting for"):
        dist.all_reduce(torch.ones(4), group=group)
    with pytest.raises(RuntimeError, match="this group cannot be used any more"):
        dist.all_reduce(torch.ones(4), group=group)
    dist.barrier()


def trains_until_rank_2_is_killed(rank, folder, links):
    """In a process of its own, which outlives the death of another."""
    import collectives.backends.register  # noqa: F401

    path = f"file://{folder}/store"
    dist.init_process_group("by_hand", init_method=path, rank=rank, world_size=4)
    group, x, text = group_of(links), torch.ones(300_000), ""
    for step in range(1000):
        if (rank, step) == (2, 20):
            (folder / "killed").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(x, group=group)
        except RuntimeError as error:
            text = str(error)
            break
    seconds = time.monotonic() - float((folder / "killed").read_text())
    (folder / f"{rank}").write_text(f"{seconds} {text}")


@pytest.mark.parametrize("links", LINKS)
def test_a_peer_that_is_killed_in_the_middle_is_named_at_once_on_all_other_ranks(links, tmp_path):
    processes = multiprocessing.get_context("forkserver")
    ranks = [
        processes.Process(target=trains_until_rank_2_is_killed, args=(rank, tmp_path, links))
        for rank in range(4)
    ]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(60)
    assert [one.exitcode for one in ranks] == [0, 0, -signal.SIGKILL, 0]
    for rank in (0, 1, 3):
        seconds, text = (tmp_path / str(rank)).read_text().split(maxsplit=1)
        print(seconds, text)
        assert text == (
            f"rank {rank}/4: all_reduce failed: connection closed by peer: rank 2 has gone [by_hand]"
        )
        assert float(seconds) < 10  # the time limit is 30 minutes


# Without shared memory


@in_ranks(3, "by_hand")
def test_without_memory_to_share_all_ranks_go_on_over_sockets(rank, world_size, device):
    def full(*_):
        raise OSError(28, "No space left on device")

    os.posix_fallocate = full
    x = torch.ones(3)
    dist.all_reduce(x)
    group = group_of("shared_memory")
    with pytest.raises(RuntimeError, match="no memory to share: No space left on device"):
        dist.all_reduce(x, group=group)
    assert (x.tolist(), dist.group.WORLD.shared) == ([3.0] * 3, None)


def no_memfd():
    del os.memfd_create


def another_processor():
    memory.platform.machine = lambda: "aarch64"


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        (no_memfd, "this system has no memfd"),
        (another_processor, "aarch64 does not keep the order"),
    ],
)
@in_ranks(3, "by_hand")
def test_where_one_rank_cannot_share_memory_all_go_over_sockets_or_refuse(
    rank, world_size, device, lacks, words
):
    if rank == 1:
        lacks()
    with pytest.raises(ValueError, match=f"there is no shared memory: {words}"):
        group_of("shared_memory")
    group = group_of(None)
    dist.all_reduce(x := torch.ones(3), group=group)
    assert (x.tolist(), group.shared) == ([3.0] * 3, None)


# Its name

NAMED = """
import torch.distributed as dist
dist.init_process_group("by_hand", store=dist.HashStore(), rank=0, world_size=1)
print(dist.get_backend())
dist.destroy_process_group()
"""
LOADED = """
import importlib.metadata, torch.distributed as dist
(found,) = importlib.metadata.entry_points(group="torch.distributed.backends", name="by_hand")
found.load()()
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(LOADED + NAMED, id="as-torch-loads-it"),
        pytest.param(
            NAMED,
            id="by-its-name-alone",
            marks=pytest.mark.skipif(
                torch.__version__ < "2.14", reason="torch 2.14 is the first to look for backends"
            ),
        ),
    ],
)
def test_torch_finds_it_by_its_entry_point(program):
    done = finished(["python", "-c", program])
    assert (done.stdout, done.returncode) == ("by_hand\n", 0), done.stderr


# Messages


@in_ranks(2, "by_hand")
def test_a_receive_ends_when_its_group_is_destroyed_and_may_be_destroyed_twice(
    rank, world_size, device
):
    group = group_of(None)
    waits = dist.irecv(torch.zeros(1), src=1 - rank, group=group)
    dist.destroy_process_group(group)
    group.shutdown()
    with pytest.raises(RuntimeError, match=r"recv from rank .*: (the group was|connection)"):
        waits.wait()
    assert not [one.name for one in threading.enumerate() if "by-hand" in one.name]
