"""Run a lesson or a mistake, show what happened, and make the notebooks.

A lesson imports `run` from here, and a mistake `mistake` and `cure`. They are loaded when they are asked for: importing the runner
starts the server of the ranks, which `collectives list`, for one, does not need.
"""

import importlib

_HOMES = {"run": "runner", "cure": "step", "mistake": "step"}

__all__ = ["cure", "mistake", "run"]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
