"""The textbook algorithms: right in every case, and a wrong schedule is noticed."""

import itertools
import re
import time
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from algorithm_runs import ALL, MOVES, REDUCTIONS, SUM, Exact, all_algorithms, ranks, run, some
from repository import ROOT
from thread_world import ThreadLinks, world
from torch.overrides import TorchFunctionMode

from collectives import launch
from collectives.algorithms import calls, double_tree, table
from collectives.algorithms.links import GroupLinks
from collectives.algorithms.lockstep import messages, play
from collectives.algorithms.reductions import reduction
from collectives.algorithms.schedule import NOBODY, Rounds, Step, numbers, steps
from collectives.semantics import values


@pytest.fixture(autouse=True)
def _one_thread_for_torch():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# The schedules, without tensors

SHORT_AND_LONG = (1, 5 * table.CHUNK)


def schedule_of(collective, name, n, per_node, nbytes):
    """The messages of each step, and the number of pieces in each rank's memory."""
    chosen = table.ALGORITHMS[collective][name]
    pieces = chosen.pieces(n, nbytes, per_node)
    count = 2 * pieces if collective == "all_to_all" else pieces
    found = messages(lambda rank: chosen.steps(rank, n, pieces, per_node), n, count)
    return found, count


@all_algorithms
def test_what_one_rank_sends_another_receives_in_the_same_step(collective, name):
    for (n, per_node), nbytes in itertools.product(ranks(collective, name, 16), SHORT_AND_LONG):
        found, _ = schedule_of(collective, name, n, per_node, nbytes)  # raises if not
        for step in found:
            assert len({message.source for message in step}) == len(step)
            assert len({message.to for message in step}) == len(step)


@pytest.mark.parametrize("name", table.ALGORITHMS["all_reduce"])
def test_all_reduce_adds_every_rank_exactly_once(name):
    for (n, per_node), nbytes in itertools.product(ranks("all_reduce", name, 16), SHORT_AND_LONG):
        found, count = schedule_of("all_reduce", name, n, per_node, nbytes)
        memory = [[1000**rank] * count for rank in range(n)]
        *_, memory = play(found, memory) if found else [memory]
        # A rank that is added twice, or not at all, changes a digit.
        assert memory == [[sum(1000**rank for rank in range(n))] * count] * n


@all_algorithms
def test_all_ranks_at_once_do_what_each_one_does(collective, name):
    chosen = table.ALGORITHMS[collective][name]
    for n, per_node in ranks(collective, name, 9):
        pieces = chosen.pieces(n, 5 * table.CHUNK, per_node)
        count = 2 * pieces
        together = list(steps(chosen.steps(np.arange(n), n, pieces, per_node)))
        for rank in range(n):
            own = list(steps(chosen.steps(rank, n, pieces, per_node)))
            assert len(own) == len(together)
            for one, every in zip(own, together, strict=True):
                to, source = (np.broadcast_to(x, n)[rank] for x in (every.to, every.source))
                assert (to, source) == (one.to, one.source)
                for peer, field in ((to, "send"), (source, "receive")):
                    if peer != NOBODY:
                        its = pick(getattr(every, field), rank)
                        assert numbers(its, count) == numbers(getattr(one, field), count)


def pick(which, rank):
    """One rank's part of a field that holds all ranks'."""
    parts = [
        np.atleast_1d(part) for part in (which if isinstance(which, list | tuple) else [which])
    ]
    own = [part[rank if len(part) > 1 else 0] for part in parts]
    return type(which)(*own) if isinstance(which, tuple) else own


@all_algorithms
def test_the_peers_stay_the_same_in_all_rounds(collective, name):
    chosen = table.ALGORITHMS[collective][name]
    for n, per_node in ranks(collective, name, 9):
        for part in chosen.steps(n - 1, n, chosen.pieces(n, 1, per_node), per_node):
            if isinstance(part, Rounds):
                peers = {(int(step.to), int(step.source)) for step in steps([part])}
                assert len(peers) <= 1


def test_the_first_chunk_has_reached_all_ranks_after_twice_log2_steps():
    for n in range(2, 300):
        first = double_tree.two_trees(n).first[:, 1:]
        assert first.min() == 0
        assert first.max() + 1 <= 2 * (n - 1).bit_length()


# Executed, in threads


def lengths(n):
    return sorted({0, n - 1, n, 2 * n + 3})


class Long:
    """The same for long tensors, made by torch."""

    op = SUM

    def __init__(self, n, length):
        self.n, self.length = n, length

    def term(self, rank, start=0):
        return (rank + 1) * torch.arange(start, start + self.length)

    def sums(self, start=0):
        return self.n * (self.n + 1) // 2 * torch.arange(start, start + self.length)


def assert_right(case, result):
    for one, other in zip(*result, strict=True):
        assert torch.equal(one, other), f"{case}: got {one}, should be {other}"


@some(REDUCTIONS + MOVES)
def test_right_for_every_number_of_ranks_length_and_root(collective, name, monkeypatch):
    monkeypatch.setattr(table, "CHUNK", 16)  # two elements: so that short tensors are pipelined
    for n, per_node in ranks(collective, name, 8):
        has_root = collective in ("broadcast", "reduce", "gather", "scatter")
        cases = [(0, length) for length in lengths(n)]
        cases += [(root, n + 1) for root in range(1, n) if has_root]

        def every(links, cases=cases, per_node=per_node):
            for root, length in cases:
                data = Exact(links.size, length)
                assert_right((root, length), run(links, collective, name, root, data, per_node))

        world(n, every)


@some(REDUCTIONS + MOVES)
def test_right_for_long_tensors(collective, name):
    n = 4 if table.ALGORITHMS[collective][name].power_of_two else 3
    for result in world(n, lambda links: run(links, collective, name, n - 1, Long(n, 70_001), 1)):
        assert_right(n, result)


DTYPES = [
    dtype
    for dtype in values.DTYPES.values()
    if "float8" not in str(dtype) and dtype not in (torch.uint16, torch.uint32, torch.uint64)
]
OPS = [
    getattr(dist.ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", *values.BITWISE)
]
OPS.append(dist._make_nccl_premul_sum(float(values.FACTOR)))


def can(op, dtype):
    try:
        reduction(op, dtype)
    except ValueError:
        return False
    return True


@some(REDUCTIONS)
def test_right_for_every_dtype_and_reduction(collective, name):
    pairs = [(op, dtype) for op in OPS for dtype in DTYPES if can(op, dtype)]
    # SUM and PRODUCT of 12 dtypes, AVG of 6, MIN and MAX of 10, three of bits of 6, PREMUL_SUM of 11.
    assert len(pairs) == 79
    # The number of ranks and the length do not matter to a reduction.
    n = 4 if table.ALGORITHMS[collective][name].power_of_two else 3

    def every(links):
        for pair in pairs:
            assert_right(pair, run(links, collective, name, n - 1, Exact(n, n + 1, *pair)))

    world(n, every)


@some(MOVES)
def test_every_dtype_can_be_moved(collective, name):
    def every(links):
        for dtype in values.DTYPES.values():
            result = run(links, collective, name, 1, Exact(4, 5, dtype=dtype))
            # As bytes: torch cannot compare every dtype.
            assert_right(dtype, ([x.view(torch.uint8) for x in tensors] for tensors in result))

    world(4, every)


UNEVEN = [
    (collective, name)
    for collective, name in ALL
    if collective in ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")
    and table.ALGORITHMS[collective][name].uneven
]


@pytest.mark.parametrize(("collective", "name"), UNEVEN, ids=["-".join(one) for one in UNEVEN])
def test_pieces_of_different_sizes(collective, name):
    n = 4
    sizes = [3, 0, 1, 2]

    def every(links):
        rank = links.rank
        own = [torch.full((size,), 10 * rank + peer) for peer, size in enumerate(sizes)]
        out = [torch.full((size,), -1) for size in sizes]
        if collective == "reduce_scatter":
            calls.reduce_scatter(links, out[rank], own, SUM, name)
            return out[rank].tolist() == [60 + 4 * rank] * sizes[rank]
        if collective == "all_to_all":
            out = [torch.full((sizes[rank],), -1) for _ in sizes]
            calls.all_to_all(links, out, own, name)
            return [x.tolist() for x in out] == [[10 * r + rank] * sizes[rank] for r in range(n)]
        if collective == "all_gather":
            calls.all_gather(links, out, own[rank], name)
        elif collective == "gather":
            calls.gather(links, out if rank == 2 else None, own[rank], 2, name)
        else:
            calls.scatter(links, out[rank], own if rank == 2 else None, 2, name)
            return out[rank].tolist() == [20 + rank] * sizes[rank]
        took = [x.tolist() for x in out]
        is_given = collective == "all_gather" or rank == 2
        return took == [[11 * r if is_given else -1] * sizes[r] for r in range(n)]

    assert world(n, every) == [True] * n


def test_a_parameter_of_any_shape_is_reduced_in_its_own_memory():
    def every(links):
        shapes = ((), (6,), (2, 3))
        tensors = [torch.ones(s, requires_grad=leaf) for s in shapes for leaf in (True, False)]
        for tensor in tensors:
            calls.all_reduce(links, tensor, SUM, "ring")
        return all(torch.equal(tensor, torch.full_like(tensor, 2)) for tensor in tensors)

    assert all(world(2, every))


def test_pieces_that_are_neighbours_by_chance_stay_apart():
    """As tensors that the allocator has put next to each other."""

    def every(links):
        memory = bytearray(4)
        out = [torch.frombuffer(memory, dtype=torch.uint8, count=1, offset=r) for r in range(4)]
        calls.all_gather(links, out, torch.tensor([links.rank], dtype=torch.uint8), "bruck")
        return list(memory)

    assert world(4, every) == [[0, 1, 2, 3]] * 4


def test_only_these_algorithms_need_equal_pieces_or_a_power_of_two():
    """The first of each collective needs neither: it is taken where the others cannot be."""
    needs = {
        (collective, name): one.power_of_two or not one.uneven
        for collective, known in table.ALGORITHMS.items()
        for name, one in known.items()
    }
    assert {name for name, one in needs.items() if one} == {
        ("all_gather", "recursive_doubling"), ("reduce_scatter", "halving"),
        ("gather", "binomial_tree"), ("scatter", "binomial_tree"), ("all_to_all", "bruck"),
    }  # fmt: skip


def test_no_rank_leaves_a_barrier_before_every_rank_has_come():
    for n in range(1, 9):
        for late in range(n):
            came = []

            def every(links, late=late, came=came):
                if links.rank == late:
                    time.sleep(0.002)
                came.append(links.rank)
                calls.barrier(links, "dissemination")
                return len(came)

            assert world(n, every) == [n] * n


@pytest.mark.parametrize("name", table.ALGORITHMS["all_reduce"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_bits_are_the_same_on_all_ranks_and_in_every_run(name, dtype):
    for n in (4, 7):
        terms = torch.randn(n, 100_001, generator=torch.Generator().manual_seed(n)).to(dtype)
        terms[:, 0] = torch.tensor([0.0, -0.0] * n)[:n]  # equal, but not in their bits

        def every(links, op, terms=terms):
            own = terms[links.rank].clone()
            calls.all_reduce(links, own, op, name, per_node=1 if links.size % 2 else 2)
            return own

        for op in (dist.ReduceOp.MAX, SUM):
            results = [one for _ in range(2) for one in world(n, partial(every, op=op))]
            assert all(same_bits(one, results[0]) for one in results)
        exact, came = terms.double().sum(0), results[0]
        assert torch.allclose(came.double(), exact, rtol=0, atol=n * n * torch.finfo(dtype).eps)


def same_bits(one, other):
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_torch_never_gets_enough_elements_to_use_several_threads(monkeypatch):
    """It does from 32,769 on."""
    seen = []

    class Watched(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function.__name__ in ("copy_", "mul_", "div_", "add", "clone", "cat"):
                tensors = args[0] if isinstance(args[0], list) else args[:1]
                seen.append((function.__name__, sum(tensor.numel() for tensor in tensors)))
            return function(*args, **(kwargs or {}))

    def watched(function):
        def call(*args):
            with Watched():
                function(*args)

        return call

    class Averages(Long):
        op = dist.ReduceOp.AVG

        def term(self, rank, start=0):
            return super().term(rank, start).float()

    for collective in MOVES + REDUCTIONS:
        monkeypatch.setattr(calls, collective, watched(getattr(calls, collective)))

    def every(links):
        for collective, name in ALL:
            if collective != "barrier":
                run(links, collective, name, 0, Averages(links.size, 40_001))

    world(4, every)
    assert {name for name, _ in seen} == {"copy_", "div_", "add"}
    assert max(count for _, count in seen) <= 32_768


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (Step(1, NOBODY), Step(NOBODY, NOBODY), r"rank 0 sends pieces \(0,\) to rank 1, which rec"),
        (Step(1, NOBODY, [0, 1]), Step(NOBODY, 0), r"pieces \(0, 1\) to rank 1, .*\(0,\) from"),
        (Step(NOBODY, NOBODY), Step(NOBODY, 0), "rank 1 waits for rank 0, which sends none"),
        (Step(NOBODY, 1), Step(NOBODY, NOBODY), "rank 0 waits for rank 1, which sends none"),
    ],
    ids=["not_expected", "other_size", "not_sent_by_the_lower", "not_sent_by_the_higher"],
)
def test_a_message_that_only_one_of_its_ranks_knows_is_noticed(first, second, words):
    with pytest.raises(ValueError, match=f"step 0: .*{words}"):
        messages(lambda rank: [(first, second)[rank]], 2, 2)


# Refused, before any message


def ring(x, op=SUM):
    calls.all_reduce(ONE, x, op, "ring")


def chain(x):
    calls.broadcast(ONE, x, 0, "chain")


ONE, THREE = (ThreadLinks.world(n)[0] for n in (1, 3))
HALF = dist._make_nccl_premul_sum(0.5)
REFUSED = [
    (lambda x: ring(x.reshape(2, 3).t()), r"strides \(1, 3\): use cont"),
    (lambda x: chain(x[::2]), r"strides \(2,\)"),
    (lambda x: ring(x.to("meta")), "on the CPU, this one is .* on meta"),
    (lambda x: ring(x.to_sparse()), "dense tensors"),
    (lambda x: chain(x.cfloat().conj()), r"use resolve_conj\(\)"),
    (lambda x: chain(torch._neg_view(x)), r"use resolve_neg\(\)"),
    (lambda x: x.untyped_storage().resize_(0) or chain(x), "memory of their own"),
    (lambda x: ring(x.to(torch.uint16)), "torch cannot add torch.uint16"),
    (lambda x: calls.reduce(ONE, x.to(torch.float8_e5m2), 0, SUM, "chain"), "add torch.float8"),
    (lambda x: ring(x.long(), OPS[1]), "no AVG for torch.int64.*then divide"),
    (lambda x: ring(x, dist.ReduceOp.BOR), "no BOR for torch.float32, only"),
    (lambda x: ring(x.int(), HALF), "PREMUL_SUM by 0.5 is no torch.int32: take a whole"),
    (lambda x: calls.all_reduce(ONE, x, SUM, "rings"), "no algorithm 'rings': take ring"),
    (
        lambda x: calls.all_gather(THREE, [x] * 3, x, "recursive_doubling"),
        "a power of two .* not 3: take ring",
    ),
    (lambda x: calls.all_reduce(THREE, x, SUM, "hierarchical", 2), "3 ranks do not fill machines"),
    (
        lambda x: calls.scatter(THREE, x, [x, x, x[:2]], 0, "binomial_tree"),
        r"pieces of one size, these have \[2, 6\] elements: take direct",
    ),
    (lambda x: calls.all_to_all(ONE, [x[:2]], [x], "bruck"), "pieces of one size"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message[:25] for _, message in REFUSED])
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(6))


# Executed over gloo's messages


def test_right_over_the_messages_of_gloo():
    def fn(rank, world_size, device):
        links = GroupLinks(dist.group.WORLD)
        calls.barrier(links, "dissemination")
        for collective, name in ALL:
            if collective != "barrier":
                # One is long enough to go along a tree in several chunks.
                data = Long(world_size, 100_001 if collective == "all_reduce" else 5)
                result = run(links, collective, name, world_size - 1, data)
                assert_right((collective, name), result)

    launch(fn, 4)


def test_the_program_in_the_page_prints_what_its_comment_says(capsys):
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(program, "docs/algorithms.md", "exec"), {"__name__": "program"})
    assert capsys.readouterr().out.strip() == program.strip().rpartition("# ")[2]
