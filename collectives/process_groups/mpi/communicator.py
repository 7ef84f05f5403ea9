"""The communicator of a process group."""

from typing import Any

from collectives.process_groups.mpi.library import MPI, world
from collectives.process_groups.mpi.store import forget_shared_memory


def new_communicator(options: Any) -> MPI.Comm:
    """A communicator for the group's ranks. Only they take part.

    Each waits for the others up to the group's timeout. Raises ValueError if torch's rank is not
    MPI's rank.
    """
    everyone = world()
    ranks = options.global_ranks_in_group or list(range(options.group_size))
    own_rank = ranks[options.group_rank]
    if own_rank != everyone.rank or max(ranks) >= everyone.size:
        raise ValueError(
            f"rank {own_rank} of {len(ranks)} is rank {everyone.rank} of {everyone.size} to MPI: "
            "start the script with mpiexec, and take rank and world size from MPI "
            "(init_method='mpi://')."
        )
    # The ranks meet at the store first, because MPI itself has no timeout.
    if options.store.add("came", 1) == len(ranks):
        options.store.set("all came", "")
    options.store.wait(["all came"], options.timeout)
    forget_shared_memory()
    group = everyone.group.Incl(ranks)
    comm = everyone.Create_group(group)
    group.Free()
    return comm
