"""Learn torch.distributed's collectives by running them, and check a backend against them.

What programs import is here, and stays here. A lesson, an exercise or a picture may also import the
modules that docs/api.md lists; all others are private. Each name is loaded when it is first used,
so that `collectives list`, for example, imports no torch.
"""

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from .semantics import torch_names as _torch_names

if TYPE_CHECKING:  # The one list of the public names: type checkers read it, and so does _HOMES.
    from collectives.course.data_set import digits as digits
    from collectives.course.data_set import text as text
    from collectives.course.marks import computed as computed
    from collectives.course.marks import cure as cure
    from collectives.course.marks import in_lab as in_lab
    from collectives.course.marks import looked_up as looked_up
    from collectives.course.marks import mistake as mistake
    from collectives.course.marks import myth as myth
    from collectives.course.marks import needs as needs
    from collectives.course.practice.session import practice as practice
    from collectives.course.results import stdout_lines as stdout_lines
    from collectives.course.runner import run as run
    from collectives.lab.lab import Lab as Lab
    from collectives.launcher.failure import LaunchError as LaunchError
    from collectives.launcher.launch import launch as launch
    from collectives.pictures.crossings import Times as Times
    from collectives.pictures.curves import Curve as Curve
    from collectives.pictures.step_log import SchedulePlayback as SchedulePlayback
    from collectives.pictures.step_log import StepLog as StepLog
    from collectives.recording.counts import counting as counting
    from collectives.recording.record import note_calls as note_calls
    from collectives.recording.record import span as span
    from collectives.semantics.check import Mismatch as Mismatch
    from collectives.semantics.check import check as check
    from collectives.semantics.check_samples import check_samples as check_samples
    from collectives.semantics.check_samples import note_samples as note_samples
    from collectives.semantics.check_training import check_training as check_training

_HOMES = {
    alias.name: f"{node.module}"
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("collectives.")
    for alias in node.names
}
__all__ = sorted(_HOMES)

_torch_names.give()


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
