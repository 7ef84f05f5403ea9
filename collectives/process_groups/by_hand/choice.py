"""Which algorithm a call takes: the one that is forced, or else the one that the table has for its
size.

COLLECTIVES_ALGORITHM=ring python train.py

>>> def total(rank, world_size, device):
...     group = dist.new_group(backend="by_hand", pg_options=Options(algorithm="ring"))
...     x = torch.tensor([10.0**rank])
...     dist.all_reduce(x, group=group)
...     return x.item()
>>> launch(total, 2)
[11.0, 11.0]
"""

import functools
import os
from dataclasses import dataclass
from typing import NamedTuple

from collectives.algorithms import table
from collectives.words import did_you_mean

SHARED_MEMORY = "shared_memory"
# Forced, it means: over sockets, with the algorithm that the table has for the size.
SOCKETS = "sockets"

# What goes through shared memory. The other collectives have pieces whose sizes only their owners
# know, and the ranks could not agree on the number of chunks.
_SHARED = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")

# Over sockets: up to so many bytes of the whole tensor, this algorithm. A test compares the choice
# for all_reduce with lessons/algorithms/measured.json.
_BY_SIZE = {
    "all_reduce": ((2**17, "recursive_doubling"), (2**20, "halving_doubling"), (None, "ring")),
    "reduce": ((2**18, "binomial_tree"), (None, "chain")),
    "broadcast": ((2**18, "binomial_tree"), (None, "chain")),
}
# The same for several machines with several ranks each, in a lab with 200 Mbit/s to 1 Gbit/s.
_BETWEEN_MACHINES = _BY_SIZE | {
    "all_reduce": ((2**20, "binomial_tree"), (None, "hierarchical")),
}


@dataclass(frozen=True)
class Options:
    """For `pg_options`: which algorithm a group takes."""

    algorithm: str | None = None


def forced(options: Options | None) -> str | None:
    """The algorithm that the group must take; None if the table decides.

    Raises ValueError for an unknown name, or for options that are not ours.
    """
    if options is not None and not isinstance(options, Options):
        raise ValueError(
            f"pg_options={options!r} is not for by_hand: use Options(algorithm=...) of "
            "collectives.process_groups.by_hand.choice."
        )
    name = options.algorithm if options else os.environ.get("COLLECTIVES_ALGORITHM")
    if not name:
        return None
    known = names()
    if name not in known:
        hint = did_you_mean(name, known)
        raise ValueError(f"by_hand has no algorithm {name!r}: {hint}There are {', '.join(known)}.")
    return name


def names() -> list[str]:
    """All names that can be forced."""
    found = dict.fromkeys(name for known in table.ALGORITHMS.values() for name in known)
    return [SHARED_MEMORY, SOCKETS, *found]


class ByHandCall(NamedTuple):
    """What the choice depends on. `nbytes` are those of the whole tensor, or of all of them."""

    collective: str
    nbytes: int
    size: int  # of the group
    forced: str | None
    per_machine: int | None = None  # how many ranks each machine has; None for one machine


@functools.lru_cache(1024)
def choose(call: ByHandCall, shares_memory: bool) -> str:
    """The algorithm of a call.

    A forced algorithm counts for the collectives that it exists for. Raises ValueError if it needs
    another number of ranks.
    """
    shares = shares_memory and call.collective in _SHARED
    if shares and call.forced in (None, SHARED_MEMORY):
        return SHARED_MEMORY
    known = table.ALGORITHMS[call.collective]
    if call.forced in known:
        table.find(call.collective, call.forced, call.size)
        return call.forced
    spans_machines = call.per_machine not in (None, 1, call.size)
    by_size = _BETWEEN_MACHINES if spans_machines else _BY_SIZE
    for limit, name in by_size.get(call.collective, ()):
        if limit is None or call.nbytes <= limit:
            return name
    return next(iter(known))
