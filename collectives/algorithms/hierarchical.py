"""Hierarchical: unlike all before, it knows which ranks share a machine.

all_reduce, 2 machines with 2 ranks each:

    inside     1 -> 0, 3 -> 2    ranks 0 and 2, the leaders, hold 11 and 1100
    between    0 <-> 2           the leaders hold 1111: a ring, and no other rank uses the network
    inside     0 -> 1, 2 -> 3    everybody holds 1111

A machine sends 2 (m - 1)/m tensors over the network, for m machines, however many ranks it has.
"""

from collections.abc import Iterator

from collectives.algorithms import binomial_tree, ring
from collectives.algorithms.schedule import Number, Rounds, Run, Step, among, steps


def machine_of(rank: Number, per_node: int) -> Number:
    """Consecutive ranks share a machine."""
    return rank // per_node


def all_reduce(rank: Number, n: int, per_node: int) -> Iterator[Step | Rounds]:
    """There is a piece for each machine."""
    if n % per_node:
        raise ValueError(f"{n} ranks do not fill machines of {per_node} ranks.")
    machines = n // per_node
    machine, local = machine_of(rank, per_node), rank % per_node
    everything = Run(0, machines)

    def on_my_machine(local: Number) -> Number:
        return machine * per_node + local

    def whole(step: Step) -> Step:
        return step._replace(send=everything, receive=everything)

    yield from among(map(whole, steps(binomial_tree.reduce(local, per_node))), on_my_machine)
    yield from among(
        ring.all_reduce(machine, machines), lambda leader: leader * per_node, local == 0
    )
    yield from among(map(whole, steps(binomial_tree.broadcast(local, per_node))), on_my_machine)
