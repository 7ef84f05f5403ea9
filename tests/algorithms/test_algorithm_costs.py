"""What the algorithms cost: counted and simulated."""

import itertools
import re
from functools import partial

import numpy as np
import pytest
import torch
from algorithm_runs import MOVES, REDUCTIONS, Exact, all_algorithms, ranks, run, some
from thread_world import world

from collectives.algorithms import chain, count, double_tree, ring, table
from collectives.algorithms.schedule import NOBODY, among
from collectives.algorithms.simulate import Hop, Network, finish_times
from collectives.course import files
from collectives.course.chapters import read

with files.imports_from(read()["algorithms"].lessons[0].path.parent):
    import latencies

# Counted

# Bytes of the full array. They can be cut in 1 to 16 pieces, and in an even number of chunks.
S = 8 * 720_720
CHUNKS = 2 * -(-S // 2 // table.CHUNK)
assert S % CHUNKS == 0


def log2(n):
    """Rounded up."""
    return (n - 1).bit_length()


def power(n):
    """The largest power of two up to n."""
    return 1 << (n.bit_length() - 1)


def bits(n):
    """How many bits are set in the numbers below n."""
    return sum(number.bit_count() for number in range(n))


def folded(n):
    """The all_reduces of p ranks, for n: one message more for each of the pairs, and back."""
    p = power(n)
    return p, n - p, int(n > p)


def recursive_doubling(n):
    p, extra, more = folded(n)
    return (log2(p) + more, p * log2(p) + 2 * extra, log2(p) + more, p * log2(p) + 2 * extra)


def halving_doubling(n):
    p, extra, more = folded(n)
    return (2 * log2(p) + more, 2 * p * log2(p) + 2 * extra, 2 * (p - 1) / p + more, 2 * (n - 1))


def binomial_gather(n):
    far = power(n - 1) if n > 1 else 0
    return (min(1, n - 1), n - 1, max(min(far, n - far), far / 2) / n, bits(n) / n)


def double_tree_all_reduce(n):
    share = min(2, n / 2) if n > 1 else 0
    return (CHUNKS * share, 2 * CHUNKS * (n - 1), share, 2 * (n - 1))


def one_each(n):
    return (min(1, n - 1), n - 1, min(1, n - 1), n - 1)


def pipelined(n):
    return (CHUNKS * min(1, n - 1), CHUNKS * (n - 1), min(1, n - 1), n - 1)


def one_piece_a_step(n):
    return (n - 1, n * (n - 1), (n - 1) / n, n - 1)


def doubling(n):
    return (log2(n), n * log2(n), (n - 1) / n, n - 1)


# Messages of the rank that sends most, messages of all, and the same in bytes, with S = 1.
CLOSED_FORMS = {
    "all_reduce-ring": lambda n: tuple(2 * x for x in one_piece_a_step(n)),
    "all_reduce-recursive_doubling": recursive_doubling,
    "all_reduce-halving_doubling": halving_doubling,
    "all_reduce-binomial_tree": lambda n: (log2(n), 2 * (n - 1), log2(n), 2 * (n - 1)),
    "all_reduce-double_tree": double_tree_all_reduce,
    "all_reduce-hierarchical": lambda n: (log2(n), 2 * (n - 1), log2(n), 2 * (n - 1)),
    "reduce-direct": one_each,
    "reduce-chain": pipelined,
    "reduce-binomial_tree": one_each,
    "reduce-double_tree": pipelined,
    "broadcast-direct": lambda n: (n - 1,) * 4,
    "broadcast-chain": pipelined,
    "broadcast-binomial_tree": lambda n: (log2(n), n - 1, log2(n), n - 1),
    "broadcast-double_tree": pipelined,
    "all_gather-ring": one_piece_a_step,
    "all_gather-recursive_doubling": doubling,
    "all_gather-bruck": doubling,
    "gather-direct": lambda n: (min(1, n - 1), n - 1, min(1, n - 1) / n, (n - 1) / n),
    "gather-binomial_tree": binomial_gather,
    "scatter-direct": lambda n: (n - 1, n - 1, (n - 1) / n, (n - 1) / n),
    "scatter-binomial_tree": lambda n: (log2(n), n - 1, (n - 1) / n, bits(n) / n),
    "reduce_scatter-ring": one_piece_a_step,
    "reduce_scatter-halving": doubling,
    "all_to_all-pairwise": one_piece_a_step,
    "all_to_all-bruck": lambda n: (log2(n), n * log2(n), bits(n) / n, bits(n)),
    "barrier-dissemination": lambda n: (log2(n), n * log2(n), log2(n), n * log2(n)),
}


def sizes(collective, name):
    return sorted({n for n, _ in ranks(collective, name, 16)})


@all_algorithms
def test_messages_and_bytes_are_the_closed_forms(collective, name):
    for n in sizes(collective, name):
        found = count.traffic(collective, name, n, S)
        counted = (max(found.messages), sum(found.messages), max(found.sent), sum(found.sent))
        messages, all_messages, share, all_shares = CLOSED_FORMS[f"{collective}-{name}"](n)
        assert counted[:2] == (messages, all_messages), n
        size = 1 if collective == "barrier" else S
        assert counted[2:] == pytest.approx((size * share, size * all_shares)), n


@some(REDUCTIONS + MOVES)
def test_a_run_sends_what_was_counted(collective, name):
    is_one_tensor = collective in ("all_reduce", "reduce", "broadcast")

    def counted(links, per_node, length):
        run(links, collective, name, 0, Exact(links.size, length, dtype=torch.uint8), per_node)
        return links.messages, links.sent, links.received

    # Bytes that cannot be cut in pieces of one size; of 3, some pieces have none.
    for (n, per_node), length in itertools.product(ranks(collective, name, 8), (3, 857)):
        if n in (2, 4, 6, 7):
            nbytes = length * (1 if is_one_tensor else n)
            found = count.traffic(collective, name, n, nbytes, per_node)
            in_run = world(n, partial(counted, per_node=per_node, length=length))
            assert in_run == list(zip(found.messages, found.sent, found.received, strict=True))


def test_the_factor_of_the_bus_bandwidth_is_the_share_of_the_busiest_rank():
    for collective, known in table.ALGORITHMS.items():
        for n in (2, 3, 8, 13, 16):
            shares = [
                count.traffic(collective, name, n, S).busiest() / S
                for name in known
                if n in sizes(collective, name)
            ]
            if collective != "barrier":
                assert min(shares) == pytest.approx(count.bus_factor(collective, n)), collective


def test_a_machine_sends_the_same_however_many_ranks_it_has():
    """2 (m - 1)/m arrays over the network, for m machines."""
    for machines in (2, 3, 4):
        for per_node in (1, 2, 4):
            n = machines * per_node
            found = count.traffic("all_reduce", "hierarchical", n, S, per_node)
            inside = (per_node - 1).bit_length()  # to so many ranks the leader sends the result
            assert found.sent[0] == pytest.approx(S * (2 * (machines - 1) / machines + inside))


# Simulated

US = 1e-6


def full_ring(n, network, piece_bytes=0.0):
    ranks = np.arange(n)
    return finish_times(ring.all_reduce(ranks, n), ranks, piece_bytes, network)


@pytest.mark.parametrize("sender_waits", [False, True])
@pytest.mark.parametrize("piece_bytes", [0, 1e5])
def test_one_machine_by_symmetry_is_every_message(piece_bytes, sender_waits):
    network = Network(6, Hop(0.47 * US, 50e9), Hop(2.7 * US, 25e9), sender_waits)
    for n in (6, 12, 600):
        every = full_ring(n, network, piece_bytes)
        machine = np.arange(6)
        one = finish_times(ring.all_reduce(machine, n), machine, piece_bytes, network, skip=True)
        assert every.reshape(-1, 6) == pytest.approx(np.tile(one, (n // 6, 1)), rel=1e-5)


def test_a_ring_through_24_576_ranks_has_40_960_hops_inside_a_node_and_8_190_between_nodes():
    network = Network(6, Hop(0.47 * US), Hop(2.7 * US))
    one = np.arange(6)
    by_symmetry = finish_times(ring.all_reduce(one, 24_576), one, 0, network, skip=True).max()
    assert by_symmetry == pytest.approx((40_960 * 0.47 + 8_190 * 2.7) * US, rel=1e-3)


def test_two_trees_share_one_port():
    """A rank receives half of the array in each tree: no sooner than the array passes its port."""
    ranks, network = np.arange(64), Network(1, Hop(0, 1.0), Hop(0, 1.0))
    chunks, nbytes = 100, 1.0
    schedule = double_tree.broadcast(ranks, 64, 2 * chunks)
    finish = finish_times(schedule, ranks, nbytes / 2 / chunks, network)
    assert finish[1:].min() >= nbytes
    assert finish.max() < 1.1 * nbytes


def test_a_message_costs_its_latency_and_its_bytes():
    network = Network(2, Hop(1.0, 10.0), Hop(100.0, 1.0))
    for n, expected in ((2, 1 + 20 / 10), (4, 2 * (100 + 20 / 1) + 3)):
        found = finish_times(ring.all_gather(np.arange(n), n), np.arange(n), 20, network)
        assert found.max() == pytest.approx(expected)


@pytest.mark.parametrize(
    "which", [name for name in CLOSED_FORMS if not re.search("tree|direct|chain|hierarch", name)]
)
def test_where_all_ranks_send_alike_a_run_takes_the_time_of_each_message(which):
    collective, name = which.split("-")
    n, (latency, bandwidth), chosen = 8, (3.0, 2.0), table.ALGORITHMS[collective][name]
    messages, _, share, _ = CLOSED_FORMS[which](n)
    pieces, ranks = chosen.pieces(n, 1, n), np.arange(n)
    network = Network(n, Hop(latency, bandwidth), Hop(latency, bandwidth))
    found = finish_times(chosen.steps(ranks, n, pieces, n), ranks, 1 / pieces, network)
    assert found == pytest.approx(np.full(n, messages * latency + share / bandwidth))


def test_the_tree_of_one_node_is_that_of_all_ranks():
    """A chain to each node's first rank, between those on a double tree, and back."""
    n, per_node = 96, 6
    node, local = np.divmod(np.arange(n), per_node)
    first = np.flatnonzero(local == 0)

    def on_my_node(local):
        return node * per_node + local

    def placed(step):
        to, source = np.full(n, NOBODY), np.full(n, NOBODY)
        to[first], source[first] = step.to, step.source
        return step._replace(to=to, source=source, send=0, receive=0)

    def tree(half):
        steps = latencies._half(double_tree.all_reduce(node[first], n // per_node, 2), half)
        return map(placed, among(steps, lambda one: one * per_node))

    for assumption in latencies.ASSUMPTIONS:
        hops = (Hop(latency * US) for latency in assumption.tree)
        network = Network(per_node, *hops, assumption.sender_waits)
        every = max(
            finish_times(
                [
                    *among(chain.reduce(local, per_node, 1), on_my_node),
                    *tree(half),
                    *among(chain.broadcast(local, per_node, 1), on_my_node),
                ],
                np.arange(n),
                0,
                network,
            ).max()
            for half in (0, 1)
        )
        by_node = latencies.tree_time(assumption, n, per_node) - assumption.tree_call * US
        assert by_node == pytest.approx(every, rel=1e-9), assumption.name
