"""What a lesson says of its steps: that one is a mistake or its cure, and which world it wants."""

from collections.abc import Callable
from dataclasses import dataclass

# What a world comes to as a whole: that of the rank which is named first here.
SYMPTOMS = {
    "dies": "dies",
    "raises": "raises an error",
    "stuck": "hangs",
    "wrong": "wrong numbers",
    "lost": "breaks off",
    "returns": "goes unnoticed",
}


@dataclass(frozen=True)
class Own:
    """The world that a mistake (which has a symptom, on gloo) or a cure (which has none) wants for itself."""

    symptom: str | None
    ranks: int
    fresh: bool


def mistake(symptom: str, *, ranks: int, fresh: bool = False) -> Callable:
    """Mark a function as a mistake that shows this symptom on so many ranks.

    With `fresh` the ranks have no process group yet, but the environment variables that torchrun sets.
    """
    if symptom not in SYMPTOMS.values():
        raise ValueError(
            f"symptom={symptom!r} is not known: use one of {', '.join(SYMPTOMS.values())}."
        )
    return _mark(Own(symptom, ranks, fresh))


def cure(*, ranks: int, fresh: bool = False) -> Callable:
    """Mark a function as the cure of the mistake before it."""
    return _mark(Own(None, ranks, fresh))


def _mark(own: Own) -> Callable:
    def mark(step: Callable) -> Callable:
        step.own = own
        return step

    return mark
