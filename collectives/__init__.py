"""Learn torch.distributed's collectives by running them, and check a backend against them.

What lessons and programs import is here, and stays here: the rooms below it may move. Each name is
loaded when it is first used, so that `collectives list`, for example, imports no torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectives.course.data_set import digits, text
    from collectives.course.lab_output import stdout_lines
    from collectives.course.marks import computed, cure, in_lab, looked_up, mistake, myth, needs
    from collectives.course.practice.session import practice
    from collectives.course.runner import run
    from collectives.lab.lab import Lab
    from collectives.launcher.failure import LaunchError
    from collectives.launcher.launch import launch
    from collectives.pictures.crossings import Times
    from collectives.pictures.curves import Curve
    from collectives.pictures.step_log import SchedulePlayback, StepLog
    from collectives.recording.counts import counting
    from collectives.recording.record import span
    from collectives.semantics.check import Mismatch, check
    from collectives.semantics.check_training import check_training

_HOMES = {
    "Curve": "collectives.pictures.curves",
    "Lab": "collectives.lab.lab",
    "LaunchError": "collectives.launcher.failure",
    "Mismatch": "collectives.semantics.check",
    "SchedulePlayback": "collectives.pictures.step_log",
    "StepLog": "collectives.pictures.step_log",
    "Times": "collectives.pictures.crossings",
    "check": "collectives.semantics.check",
    "check_training": "collectives.semantics.check_training",
    "computed": "collectives.course.marks",
    "counting": "collectives.recording.counts",
    "cure": "collectives.course.marks",
    "digits": "collectives.course.data_set",
    "in_lab": "collectives.course.marks",
    "launch": "collectives.launcher.launch",
    "looked_up": "collectives.course.marks",
    "mistake": "collectives.course.marks",
    "myth": "collectives.course.marks",
    "needs": "collectives.course.marks",
    "practice": "collectives.course.practice.session",
    "run": "collectives.course.runner",
    "span": "collectives.recording.record",
    "stdout_lines": "collectives.course.lab_output",
    "text": "collectives.course.data_set",
}

__all__ = [
    "Curve",
    "Lab",
    "LaunchError",
    "Mismatch",
    "SchedulePlayback",
    "StepLog",
    "Times",
    "check",
    "check_training",
    "computed",
    "counting",
    "cure",
    "digits",
    "in_lab",
    "launch",
    "looked_up",
    "mistake",
    "myth",
    "needs",
    "practice",
    "run",
    "span",
    "stdout_lines",
    "text",
]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
