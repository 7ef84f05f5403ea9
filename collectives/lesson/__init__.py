"""Run a lesson or a mistake, show what happened, and make the notebooks.

A lesson imports `run` and `needs` from here, a mistake `run`, `mistake` and `cure`, the test of a
claim `run` and `claim`. They are loaded when they are asked for: importing the runner starts the
server that forks the ranks, and `collectives list`, for example, does not need one.
"""

import importlib

_HOMES = {"run": "runner", "claim": "step", "cure": "step", "mistake": "step", "needs": "step"}

__all__ = ["claim", "cure", "mistake", "needs", "run"]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
