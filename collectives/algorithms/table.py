"""Which algorithm for which collective, by name.

>>> sorted(ALGORITHMS["barrier"])
['dissemination']
"""

from collections.abc import Callable
from dataclasses import dataclass

from collectives.algorithms import (
    binomial_tree,
    bruck,
    chain,
    direct,
    dissemination,
    double_tree,
    halving_doubling,
    hierarchical,
    pairwise,
    recursive_doubling,
    ring,
)
from collectives.algorithms.schedule import Schedule

# A long tensor goes along a chain or tree in chunks of so many bytes.
CHUNK = 256 * 1024


@dataclass(frozen=True)
class Algorithm:
    """`schedule(rank, n)` for a tensor in `pieces(n, nbytes, per_node)` pieces."""

    schedule: Callable[..., Schedule]
    pieces: Callable[[int, int, int], int]
    takes: tuple[str, ...] = ()  # what else the schedule depends on: "pieces", "per_node"
    power_of_two: bool = False  # it needs such a number of ranks
    uneven: bool = True  # each rank's piece may have its own size

    def steps(self, rank: int, n: int, pieces: int, per_node: int) -> Schedule:
        known = {"pieces": pieces, "per_node": per_node}
        return self.schedule(rank, n, **{name: known[name] for name in self.takes})


def _whole(n: int, nbytes: int, per_node: int) -> int:
    return 1


def _per_rank(n: int, nbytes: int, per_node: int) -> int:
    return n


def _power_of_two(n: int, nbytes: int, per_node: int) -> int:
    return 1 << (n.bit_length() - 1)


def _chunks(n: int, nbytes: int, per_node: int) -> int:
    return max(1, -(-nbytes // CHUNK))


def _chunks_in_halves(n: int, nbytes: int, per_node: int) -> int:
    return 2 * _chunks(n, nbytes // 2, per_node)


def _per_machine(n: int, nbytes: int, per_node: int) -> int:
    return n // per_node


# The first one of each works for any number of ranks and any sizes.
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": Algorithm(ring.all_reduce, _per_rank),
        "recursive_doubling": Algorithm(recursive_doubling.all_reduce, _whole),
        "halving_doubling": Algorithm(halving_doubling.all_reduce, _power_of_two),
        "binomial_tree": Algorithm(binomial_tree.all_reduce, _whole),
        "double_tree": Algorithm(double_tree.all_reduce, _chunks_in_halves, takes=("pieces",)),
        "hierarchical": Algorithm(hierarchical.all_reduce, _per_machine, takes=("per_node",)),
    },
    "reduce": {
        "direct": Algorithm(direct.reduce, _whole),
        "chain": Algorithm(chain.reduce, _chunks, takes=("pieces",)),
        "binomial_tree": Algorithm(binomial_tree.reduce, _whole),
        "double_tree": Algorithm(double_tree.reduce, _chunks_in_halves, takes=("pieces",)),
    },
    "broadcast": {
        "direct": Algorithm(direct.broadcast, _whole),
        "chain": Algorithm(chain.broadcast, _chunks, takes=("pieces",)),
        "binomial_tree": Algorithm(binomial_tree.broadcast, _whole),
        "double_tree": Algorithm(double_tree.broadcast, _chunks_in_halves, takes=("pieces",)),
    },
    "all_gather": {
        "ring": Algorithm(ring.all_gather, _per_rank),
        "recursive_doubling": Algorithm(
            recursive_doubling.all_gather, _per_rank, power_of_two=True
        ),
        "bruck": Algorithm(bruck.all_gather, _per_rank),
    },
    "gather": {
        "direct": Algorithm(direct.gather, _per_rank),
        "binomial_tree": Algorithm(binomial_tree.gather, _per_rank, uneven=False),
    },
    "scatter": {
        "direct": Algorithm(direct.scatter, _per_rank),
        "binomial_tree": Algorithm(binomial_tree.scatter, _per_rank, uneven=False),
    },
    "reduce_scatter": {
        "ring": Algorithm(ring.reduce_scatter, _per_rank),
        "halving": Algorithm(halving_doubling.reduce_scatter, _per_rank, power_of_two=True),
    },
    "all_to_all": {
        "pairwise": Algorithm(pairwise.all_to_all, _per_rank),
        "bruck": Algorithm(bruck.all_to_all, _per_rank, uneven=False),
    },
    "barrier": {"dissemination": Algorithm(dissemination.barrier, _whole)},
}


def find(collective: str, name: str, n: int) -> Algorithm:
    """Raises ValueError, with the names that there are, unless `n` ranks can use the algorithm."""
    known = ALGORITHMS[collective]
    if name not in known:
        raise ValueError(f"{collective} has no algorithm {name!r}: take {', '.join(known)}.")
    if known[name].power_of_two and n & (n - 1):
        raise ValueError(
            f"{collective}: {name} needs a power of two of ranks, not {n}: "
            f"take {' or '.join(names(collective, n))}."
        )
    return known[name]


def names(collective: str, n: int) -> list[str]:
    """The algorithms that `n` ranks can use."""
    known = ALGORITHMS[collective]
    return [name for name in known if not (known[name].power_of_two and n & (n - 1))]
