"""The claim "up to 180 times faster on 24,576 GPUs", simulated under several assumptions.

NVIDIA wrote it in 2019 about NCCL 2.4: double binary trees against rings, on Summit, with 6 GPUs
a node (documented). The latencies are the constants of NCCL's own src/graph/tuning.cc, of the
versions of 2019 and 2020 (documented). They are NCCL's estimates, in µs, and not measured by us.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from collectives.backends.algorithms import chain, double_tree, ring
from collectives.backends.algorithms.schedule import NOBODY, Step, among, steps
from collectives.backends.algorithms.simulate import Hop, Network, finish_times

# Bytes a second. NVLink 2 between two GPUs of Summit, and its two ports of 100 Gbit/s (documented).
INSIDE, BETWEEN = 50e9, 25e9


class Assumption(NamedTuple):
    """Latencies in µs: of a hop inside a node and between nodes, and once for each call."""

    name: str
    ring: tuple[float, float]
    tree: tuple[float, float]
    ring_call: float = 0.0
    tree_call: float = 0.0
    sender_waits: bool = False


ASSUMPTIONS = (
    # The formula of 2019 takes the network's latency for every hop of a ring, also inside a node.
    Assumption("LL, 2019", (0.9, 0.9), (0.5, 5.0), 3.6, 4.4),
    Assumption("LL128, 2019", (2.5, 2.5), (1.9, 7.5), 3.6, 4.4),
    Assumption("Simple, 2019", (6.6, 6.6), (28, 50), 8.4, 0.0),
    Assumption("LL, 2020", (0.47, 2.7), (0.52, 5.0), 3.6, 4.4),
    Assumption("Simple, 2020", (3.4, 9.6), (28, 50), 8.4, 0.0),
    Assumption("LL, 2020, a sender waits", (0.47, 2.7), (0.52, 5.0), 3.6, 4.4, True),
    Assumption("every hop alike", (1.0, 1.0), (1.0, 1.0)),
)


def ring_time(assumption: Assumption, n: int, per_node: int, nbytes: float = 0) -> float:
    """Seconds of an all_reduce on one ring, by symmetry."""
    ranks = np.arange(per_node)
    network = _network(assumption, assumption.ring, per_node)
    finish = finish_times(ring.all_reduce(ranks, n), ranks, nbytes / n, network, skip=True)
    return finish.max() + assumption.ring_call * 1e-6


def tree_time(assumption: Assumption, n: int, per_node: int, nbytes: float = 0) -> float:
    """Seconds of an all_reduce on a double tree between the nodes, and a chain inside each.

    In as many chunks as are best for the size.
    """
    call = assumption.tree_call * 1e-6
    if nbytes == 0:
        # No tree waits for the other, as each has threads of its own in NCCL (documented).
        return call + max(_tree_time(assumption, n, per_node, 1, 0, tree) for tree in (0, 1))
    half = nbytes / 2
    times = [_tree_time(assumption, n, per_node, chunks, half / chunks) for chunks in (1, 2, 4)]
    times += [
        _pipelined(assumption, n, per_node, half / size, size)
        for size in (float(2**k) for k in range(10, 30, 2))
        if half / size >= _FEW
    ]
    return call + min(times)


_FEW, _MORE = 8, 32


def _pipelined(assumption, n, per_node, chunks: float, chunk_bytes: float) -> float:
    """Once the pipeline is full, a chunk adds the same time, but for a beat of a few chunks."""
    few, more = (_tree_time(assumption, n, per_node, k, chunk_bytes) for k in (_FEW, _MORE))
    return few + (more - few) / (_MORE - _FEW) * (chunks - _FEW)


@functools.lru_cache(maxsize=1024)
def _tree_time(assumption, n, per_node, chunks, chunk_bytes, only=None) -> float:
    """By symmetry: the chains of all nodes are alike, so one of them and the tree are enough."""
    pieces, machine = 2 * chunks, np.arange(per_node)
    seconds = _grown if chunks == 1 else _between_nodes
    total = seconds(assumption, n // per_node, chunks, chunk_bytes, only)
    for part in (chain.reduce, chain.broadcast):
        schedule = _in_tree(part(machine, per_node, pieces), chunks, only)
        network = _network(assumption, assumption.tree, per_node)
        total += finish_times(schedule, machine, chunk_bytes, network).max()
    return total


def _between_nodes(assumption, nodes, chunks, chunk_bytes, only) -> float:
    ranks = np.arange(nodes)
    schedule = _in_tree(double_tree.all_reduce(ranks, nodes, 2 * chunks), chunks, only)
    network = _network(assumption, assumption.tree, per_node=1)
    return finish_times(schedule, ranks, chunk_bytes, network).max()


def _grown(assumption, nodes, chunks, chunk_bytes, only) -> float:
    """By symmetry: two more levels under all leaves add the same time, however large the tree is.

    So it does not grow beyond a few hundred nodes, if their number can be divided by four.
    """
    times, small = 0, nodes
    while small % 256 == 0:
        small, times = small // 4, times + 1
    seconds = _between_nodes(assumption, small, chunks, chunk_bytes, only)
    if times:
        before = _between_nodes(assumption, small // 4, chunks, chunk_bytes, only)
        seconds += times * (seconds - before)
    return seconds


def tree_all_reduce(rank: np.ndarray, n: int, per_node: int, pieces: int) -> Iterator[Step]:
    """Along a chain to each node's first rank, between those on a double tree, and back.

    Of all ranks at once, so that only the first ones of the nodes need the steps of the tree.
    """
    node, local = rank // per_node, rank % per_node
    first = np.flatnonzero(local == 0)

    def on_my_node(local):
        return node * per_node + local

    def placed(step):
        to, source = np.full(n, NOBODY), np.full(n, NOBODY)
        to[first], source[first] = step.to, step.source
        return Step(to, source)

    yield from among(chain.reduce(local, per_node, pieces), on_my_node)
    tree = double_tree.all_reduce(node[first], n // per_node, pieces)
    yield from map(placed, among(tree, lambda node: node * per_node))
    yield from among(chain.broadcast(local, per_node, pieces), on_my_node)


def _in_tree(schedule, chunks: int, tree: int | None) -> Iterator[Step]:
    """The steps of one tree, or of both."""
    if tree is None:
        yield from steps(schedule)
        return
    for step in steps(schedule):
        to = np.where(np.asarray(step.send) // chunks == tree, step.to, NOBODY)
        source = np.where(np.asarray(step.receive) // chunks == tree, step.source, NOBODY)
        yield step._replace(to=to, source=source)


def crossing(assumption: Assumption, n: int, per_node: int, largest: int = 2**44) -> float | None:
    """The bytes from which on the ring is faster. None if it is not up to `largest`."""
    low, high = 1.0, float(largest)
    if not _ring_wins(assumption, n, per_node, high):
        return None
    while high / low > 1.2:
        middle = (low * high) ** 0.5
        if _ring_wins(assumption, n, per_node, middle):
            high = middle
        else:
            low = middle
    return high


def size_text(nbytes: float | None) -> str:
    if nbytes is None:
        return "no size"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{float(f'{nbytes / factor:.2g}'):g} {unit}"
    return "every size" if nbytes < 2 else f"{nbytes:.2g} B"


def _ring_wins(assumption, n, per_node, nbytes) -> bool:
    return ring_time(assumption, n, per_node, nbytes) < tree_time(assumption, n, per_node, nbytes)


def _network(assumption: Assumption, latencies: tuple[float, float], per_node: int) -> Network:
    inside, between = (1e-6 * latency for latency in latencies)
    return Network(per_node, Hop(inside, INSIDE), Hop(between, BETWEEN), assumption.sender_waits)
