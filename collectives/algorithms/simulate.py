"""Simulate a schedule: when does each rank finish? One numpy operation for one step of all ranks.

The model: a message needs the latency of its hop, and then its bytes pass the receiver's port. A
rank has one port, on which it sends one message and receives one at a time: both trees of a double
tree share it. A sender is busy while its bytes leave, and not while they travel, unless the network
says that it waits. Adding costs nothing.

>>> ranks = numpy.arange(4)
>>> network = Network(per_node=4, inside=Hop(1e-6, 1e9), between=Hop(1e-5, 1e8))
>>> finish_times(ring.all_gather(ranks, 4), ranks, piece_bytes=1e6, network=network)
array([0.003003, 0.003003, 0.003003, 0.003003])
"""

from typing import NamedTuple

import numpy as np

from collectives.algorithms.schedule import NOBODY, Number, Pieces, Rounds, Run, Schedule, Step

# One number, or an array with one for each message.
Seconds = float | np.ndarray


class Hop(NamedTuple):
    """Latency in seconds, bandwidth in bytes a second."""

    latency: Seconds
    bandwidth: float | np.ndarray = np.inf


class Network(NamedTuple):
    """Machines with `per_node` consecutive ranks each."""

    per_node: int
    inside: Hop
    between: Hop
    sender_waits: bool = False


def finish_times(
    schedule: Schedule, ranks: np.ndarray, piece_bytes: float, network: Network, skip: bool = False
) -> np.ndarray:
    """The time at which each rank has done its last step, in seconds after all have begun.

    `ranks` are those that the schedule was made for: all of them, or by symmetry those of the first
    machine, if every machine does what this one does. Then a message from another machine comes at
    the time at which this one sends it to the next. With `skip`, equal rounds are not calculated
    any more once each of them takes as long as the one before.
    """
    clock = np.zeros(len(ranks))
    for part in schedule:
        if isinstance(part, Step):
            clock = _Costs(part, ranks, piece_bytes, network).after(clock, 1)
        else:
            clock = _rounds(part, clock, ranks, piece_bytes, network, skip)
    return clock


def _rounds(
    part: Rounds,
    clock: np.ndarray,
    ranks: np.ndarray,
    piece_bytes: float,
    network: Network,
    skip: bool,
) -> np.ndarray:
    costs, left = _Costs(part.step(0), ranks, piece_bytes, network), part.number
    while left:
        block = min(left, len(ranks))
        before = clock
        clock = costs.after(clock, block)
        left -= block
        grown = clock - before
        if skip and np.ptp(grown) <= 1e-12 * grown.max():
            # From here on every block of rounds adds the same time to all ranks.
            blocks, left = divmod(left, block)
            clock = clock + blocks * grown
    return clock


class _Costs:
    """What one step adds to the clocks. Only the ranks that send or receive are looked at."""

    def __init__(self, step: Step, ranks: np.ndarray, piece_bytes: float, network: Network):
        to, source = (np.broadcast_to(peer, ranks.shape) for peer in (step.to, step.source))
        senders = np.flatnonzero((to != NOBODY) & (to != ranks))
        self.receivers = np.flatnonzero((source != NOBODY) & (source != ranks))
        self.sources = source[self.receivers] % len(ranks)

        def one_way(
            who: np.ndarray, start: np.ndarray, end: np.ndarray, pieces: Pieces
        ) -> tuple[Seconds, np.ndarray]:
            latency, rate = _hops(start[who], end[who], network)
            nbytes = piece_bytes * np.broadcast_to(_count(pieces), ranks.shape)[who]
            return latency, nbytes / rate

        out_latency, leaving = one_way(senders, ranks, to, step.send)
        in_latency, arriving = one_way(self.receivers, source, ranks, step.receive)
        # A rank goes on when its own message has left, and the other one has passed its port.
        self.own = np.zeros(len(ranks))
        self.own[senders] = leaving + out_latency if network.sender_waits else leaving
        self.own[self.receivers] = np.maximum(self.own[self.receivers], arriving)
        self.others = in_latency + arriving

    def after(self, clock: np.ndarray, times: int) -> np.ndarray:
        for _ in range(times):
            arrived = clock[self.sources] + self.others
            clock = clock + self.own
            clock[self.receivers] = np.maximum(clock[self.receivers], arrived)
        return clock


def _hops(start: np.ndarray, end: np.ndarray, network: Network) -> Hop:
    """The hops from some ranks to others: one if all are alike, else one of each."""
    if network.inside == network.between:
        return network.inside
    is_inside = start // network.per_node == end // network.per_node
    return Hop(
        *(
            np.where(is_inside, inside, between)
            for inside, between in zip(network.inside, network.between, strict=True)
        )
    )


def _count(which: Pieces) -> Number:
    """How many pieces a message has."""
    if isinstance(which, Run):
        return which.length
    return len(which) if isinstance(which, list) else 1
