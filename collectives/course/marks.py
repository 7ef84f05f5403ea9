"""The marks on a step of a lesson: which world it needs, and what it is: a mistake, say."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collectives.recording.ending import Ending

# How a rank ends (RankOutcome.kind), and how we call a world in which a rank ends so. A world with
# several kinds is called after the one that stands first here.
SYMPTOMS = {
    Ending.DIED: "dies",
    Ending.RAISED: "raises an error",
    Ending.HUNG: "hangs",
    Ending.WRONG: "wrong numbers",
    Ending.PEER_LOST: "breaks off",
    Ending.RETURNED: "goes unnoticed",
}


@dataclass(frozen=True)
class WorldSpec:
    """The world that a step needs: at least `ranks` ranks.

    An `isolated` step always runs in new processes, exactly `ranks` of them. A mistake, and the
    test of a myth that makes one, has a `symptom` on gloo, one of SYMPTOMS. A cure has none. With
    `fresh` the ranks have no process group yet, but the environment variables that torchrun sets.
    A step with a `backend` is about this backend alone, and is skipped if another is chosen. A step
    in a `lab` takes no arguments and runs once: it makes machines and starts ranks there.
    `how_known`: what `run` says of its results, see `computed` and `looked_up`. A step that starts
    processes itself may take `seconds`, if the time limit is less.
    """

    ranks: int = 1
    isolated: bool = False
    symptom: str | None = None
    fresh: bool = False
    backend: str | None = None
    lab: bool = False
    how_known: str = "proved"
    seconds: float = 0.0


def needs(
    *, ranks: int, fresh: bool = False, backend: str | None = None, seconds: float = 0.0
) -> Callable:
    """Mark a step that shows nothing with fewer ranks, or on another backend: there it is skipped.

    With `fresh` it makes its process group itself, in new processes, exactly `ranks` of them. With
    `seconds` it has at least so much time, also if the limit is less.

    >>> @needs(ranks=4)
    ... def two_rows(rank, world_size, device):
    ...     group = dist.new_group([0, 1])
    """
    return _mark(ranks=ranks, isolated=fresh, fresh=fresh, backend=backend, seconds=seconds)


def in_lab(step: Callable) -> Callable:
    """Mark a step that makes a lab of machines, and starts the ranks there itself.

    >>> @in_lab
    ... def two_machines(rank, world_size, device):
    ...     with Lab(2) as lab:
    ...         return stdout_lines(lab.run("hostname"))
    """
    return _mark(isolated=True, lab=True)(step)


def computed(step: Callable) -> Callable:
    """Mark a step that does arithmetic, or simulates, and communicates nothing.

    `run` says so, instead of "proved": that is for what ranks did, compared with an independent
    result.

    >>> @computed
    ... def shares(rank, world_size, device):
    ...     return 12 // world_size
    """
    return _mark(how_known="computed")(step)


def looked_up(step: Callable) -> Callable:
    """Mark a step that shows numbers of a table, which somebody measured before.

    >>> @looked_up
    ... def on_their_cluster(rank, world_size, device):
    ...     return {"8 GPUs": "370 GB/s"}
    """
    return _mark(how_known="looked up")(step)


def mistake(symptom: str, *, ranks: int, fresh: bool = False) -> Callable:
    """Mark a step as a mistake that shows this symptom on so many ranks.

    >>> @mistake("hangs", ranks=2)
    ... def one_stays_away(rank, world_size, device):
    ...     if rank == 0:
    ...         dist.barrier()
    """
    return _mark(ranks=ranks, isolated=True, symptom=symptom, fresh=fresh)


def cure(*, ranks: int, fresh: bool = False) -> Callable:
    """Mark a step as the cure of the mistake before it.

    >>> @cure(ranks=2)
    ... def all_come(rank, world_size, device):
    ...     dist.barrier()
    """
    return _mark(ranks=ranks, isolated=True, fresh=fresh)


def myth(*, ranks: int, symptom: str | None = None, fresh: bool = False) -> Callable:
    """Mark a step that tests a myth about gloo, with the symptom that refutes it, if one does.

    >>> @myth(ranks=2)
    ... def barrier_needs_no_gpu(rank, world_size, device):
    ...     dist.barrier()
    """
    return _mark(ranks=ranks, isolated=True, symptom=symptom, fresh=fresh, backend="gloo")


def world_of(step: Callable) -> WorldSpec:
    """The world that a step is marked with. A step without a mark runs at any world size."""
    return getattr(step, "world", WorldSpec())


def _mark(**wanted: Any) -> Callable:
    """Add to the marks of a step, in any order. ValueError for two that contradict each other."""
    no_mark = vars(WorldSpec())
    new = {name: value for name, value in wanted.items() if value != no_mark[name]}
    if new.get("symptom") not in (None, *SYMPTOMS.values()):
        known = ", ".join(SYMPTOMS.values())
        raise ValueError(f"symptom={new['symptom']!r} is not known: use one of {known}.")

    def mark(step: Callable) -> Callable:
        before = vars(world_of(step))
        for name, value in new.items():
            if before[name] not in (no_mark[name], value):
                raise ValueError(
                    f"two marks of {step.__name__} contradict each other: "
                    f"{name}={before[name]!r} and {name}={value!r}. Leave one of them out."
                )
        step.world = WorldSpec(**before | new)  # type: ignore[attr-defined]
        return step

    return mark
