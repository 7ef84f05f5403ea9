"""The marks on a step of a lesson: which world it needs, and what it is: a mistake, say."""

from collections.abc import Callable
from dataclasses import dataclass

# How a rank ends (RankOutcome.kind), and how we call a world in which a rank ends so. A world with
# several kinds is called after the one that stands first here.
SYMPTOMS = {
    "died": "dies",
    "raised": "raises an error",
    "hung": "hangs",
    "wrong": "wrong numbers",
    "peer_lost": "breaks off",
    "returned": "goes unnoticed",
}


@dataclass(frozen=True)
class WorldSpec:
    """The world that a step needs: at least `ranks` ranks.

    An `isolated` step always runs in new processes, exactly `ranks` of them. A mistake, and the
    test of a claim that makes one, has a `symptom` on gloo, one of SYMPTOMS. A cure has none. With
    `fresh` the ranks have no process group yet, but the environment variables that torchrun sets.
    With a `backend` it says something of this one alone, and is skipped if another is asked for.
    A step in a `lab` takes no arguments and runs once: it makes machines and starts ranks there.
    """

    ranks: int = 1
    isolated: bool = False
    symptom: str | None = None
    fresh: bool = False
    backend: str | None = None
    lab: bool = False


def needs(*, ranks: int, fresh: bool = False) -> Callable:
    """Mark a step that shows nothing with fewer ranks: there it is skipped.

    With `fresh` it makes its process group itself, in new processes, exactly `ranks` of them.
    """
    return _mark(WorldSpec(ranks, isolated=fresh, fresh=fresh))


def in_lab(step: Callable) -> Callable:
    """Mark a step that makes a lab of machines, and starts the ranks there itself."""
    return _mark(WorldSpec(isolated=True, lab=True))(step)


def mistake(symptom: str, *, ranks: int, fresh: bool = False) -> Callable:
    """Mark a step as a mistake that shows this symptom on so many ranks."""
    return _mark(WorldSpec(ranks, isolated=True, symptom=_known(symptom), fresh=fresh))


def cure(*, ranks: int, fresh: bool = False) -> Callable:
    """Mark a step as the cure of the mistake before it."""
    return _mark(WorldSpec(ranks, isolated=True, fresh=fresh))


def claim(*, ranks: int, symptom: str | None = None, fresh: bool = False) -> Callable:
    """Mark a step as the test of a claim, on gloo; with the symptom that shows it, if one does."""
    symptom = symptom and _known(symptom)
    return _mark(WorldSpec(ranks, isolated=True, symptom=symptom, fresh=fresh, backend="gloo"))


def world_of(step: Callable) -> WorldSpec:
    """The world that a step is marked with. A step without a mark runs at any world size."""
    return getattr(step, "world", WorldSpec())


def _known(symptom: str) -> str:
    if symptom not in SYMPTOMS.values():
        raise ValueError(
            f"symptom={symptom!r} is not known: use one of {', '.join(SYMPTOMS.values())}."
        )
    return symptom


def _mark(world: WorldSpec) -> Callable:
    if isinstance(world.ranks, bool) or not isinstance(world.ranks, int) or world.ranks < 1:
        raise ValueError(f"ranks={world.ranks!r} is not a number of ranks: use an int from 1.")

    def mark(step: Callable) -> Callable:
        step.world = world
        return step

    return mark
