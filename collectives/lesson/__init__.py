"""Run a lesson or a mistake, show what happened, and make the notebooks.

A lesson imports `run` and `needs` from here, one on training also `digits` and `Curve`, one on an
algorithm `Steps`, `Played` and `Times`, a mistake `run`, `mistake` and `cure`, the test of a claim
`run` and `claim`, one on machines `run`, `in_lab` and `said`, and for its picture `Cables` or
`Pairs`. They are loaded when they are asked for: importing the runner starts the server that forks
the ranks, and `collectives list`, for example, does not need one.
"""

import importlib

_HOMES = {
    "Cables": "collectives.lesson.results",
    "Curve": "collectives.lesson.results",
    "Pairs": "collectives.lesson.results",
    "Played": "collectives.lesson.steps",
    "Steps": "collectives.lesson.steps",
    "Times": "collectives.lesson.results",
    "claim": "collectives.lesson.step",
    "cure": "collectives.lesson.step",
    "digits": "collectives.lesson.data_set",
    "mistake": "collectives.lesson.step",
    "in_lab": "collectives.lesson.step",
    "needs": "collectives.lesson.step",
    "run": "collectives.lesson.runner",
    "said": "collectives.lesson.machines",
}

__all__ = [
    "Cables",
    "Curve",
    "Pairs",
    "Played",
    "Steps",
    "Times",
    "claim",
    "cure",
    "digits",
    "in_lab",
    "mistake",
    "needs",
    "run",
    "said",
]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
