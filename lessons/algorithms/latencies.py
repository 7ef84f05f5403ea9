"""An empty all_reduce with the latencies by which NCCL chooses, on a ring and on a double tree: no
lesson, but what the lesson which_one_when simulates.

The latencies are those of NCCL's src/graph/tuning.cc, in version 2.5.6 of 2019 and 2.8.3 of 2020.
They are NCCL's estimates, and we have not measured them. Here is the row of 2019 for NVLink and the
network, with the comment above it:

    // Tree/Simple is the latency a 256kB chunk, which is ~ base lat + 256k/12GB/s
    // (+ 256k/12GB/s for the network).
    NVLINK  Tree (LL/LL128/Simple) .5  1.9  28    Ring (LL/LL128/Simple) .4  2.5  5.7
    NET     Tree (LL/LL128/Simple) 5.0 7.5  50    Ring (LL/LL128/Simple) .9  2.5  6.6
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from collectives.algorithms import chain, double_tree, ring
from collectives.algorithms.schedule import NOBODY, Schedule, Step, steps
from collectives.algorithms.simulate import Hop, Network, finish_times


class Assumption(NamedTuple):
    """Latencies in µs: of a hop inside a node and between nodes, and once for each call."""

    name: str
    ring: tuple[float, float]
    tree: tuple[float, float]
    ring_call: float = 0.0
    tree_call: float = 0.0
    sender_waits: bool = False


# subtle: Tree/Simple, 28 and 50, is no latency. It holds the transfer of a chunk, as the comment
# says: once inside a node, and twice through the network. An empty tensor has no such transfer.
CHUNK = 256 * 1024 / 12e9 * 1e6
TREE_SIMPLE = (28 - CHUNK, 50 - 2 * CHUNK)

ASSUMPTIONS = (
    # The formula of 2019 takes the network's latency for every hop of a ring, also inside a node.
    Assumption("LL, 2019", (0.9, 0.9), (0.5, 5.0), 3.6, 4.4),
    Assumption("LL128, 2019", (2.5, 2.5), (1.9, 7.5), 3.6, 4.4),
    Assumption("Simple, 2019", (6.6, 6.6), TREE_SIMPLE, 8.4, 0.0),
    Assumption("LL, 2020", (0.47, 2.7), (0.52, 5.0), 3.6, 4.4),
    Assumption("Simple, 2020", (3.4, 9.6), TREE_SIMPLE, 8.4, 0.0),
    Assumption("LL, 2020, a sender waits", (0.47, 2.7), (0.52, 5.0), 3.6, 4.4, True),
    Assumption("every hop alike", (1.0, 1.0), (1.0, 1.0)),
)


def ring_time(assumption: Assumption, n: int, per_node: int) -> float:
    """Seconds on a ring through all nodes. All of them do the same, so one node is enough."""
    schedule = ring.all_reduce(np.arange(per_node), n)
    seconds = _seconds(schedule, per_node, assumption, assumption.ring, per_node)
    return seconds + assumption.ring_call * 1e-6


def tree_time(assumption: Assumption, n: int, per_node: int) -> float:
    """Seconds on a double tree between the nodes, and a chain inside each.

    No tree waits for the other: each has threads of its own in NCCL (arxiv.org/abs/2507.04786).
    """
    both = (_one_tree(assumption, n // per_node, per_node, tree) for tree in (0, 1))
    return max(both) + assumption.tree_call * 1e-6


def _one_tree(assumption: Assumption, nodes: int, per_node: int, tree: int) -> float:
    node = np.arange(per_node)
    parts = (
        (chain.reduce(node, per_node, 2), per_node, per_node),
        (double_tree.all_reduce(np.arange(nodes), nodes, 2), nodes, 1),
        (chain.broadcast(node, per_node, 2), per_node, per_node),
    )
    return sum(
        _seconds(_half(schedule, tree), ranks, assumption, assumption.tree, per_machine)
        for schedule, ranks, per_machine in parts
    )


def _half(schedule: Schedule, tree: int) -> Iterator[Step]:
    """The steps of one tree: each has one of the two pieces."""
    for step in steps(schedule):
        to = np.where(np.asarray(step.send) == tree, step.to, NOBODY)
        source = np.where(np.asarray(step.receive) == tree, step.source, NOBODY)
        yield step._replace(to=to, source=source)


def _seconds(
    schedule: Schedule,
    ranks: int,
    assumption: Assumption,
    latencies: tuple[float, float],
    per_node: int,
) -> float:
    inside, between = (Hop(1e-6 * latency) for latency in latencies)
    network = Network(per_node, inside, between, assumption.sender_waits)
    return float(finish_times(schedule, np.arange(ranks), 0, network, skip=True).max())
