"""All exercises, in the order of the course."""

from collectives.course.practice.checks import (
    calls,
    debugging,
    from_less,
    model_parallel,
    training,
)
from collectives.course.practice.exercise import REGISTERED, Exercise
from collectives.semantics.did_you_mean import did_you_mean

# Each chapter is a module of `checks`, and a folder of exercises/ and solutions/.
CHAPTERS = [
    module.__name__.rpartition(".")[2]
    for module in (calls, from_less, training, model_parallel, debugging)
]


def read() -> dict[str, Exercise]:
    """All exercises by name."""
    found = sorted(REGISTERED.values(), key=lambda one: CHAPTERS.index(one.chapter))
    return {one.name: one for one in found}


def find(name: str) -> Exercise:
    """ValueError, with the nearest name, if there is none."""
    found = read()
    if name not in found:
        raise ValueError(
            f"there is no exercise {name!r}: {did_you_mean(name, found)}"
            "`collectives practice list` shows all."
        )
    return found[name]
