"""The table of forms: every call of the twelve lessons, and its relatives, in the lessons' reading order."""

import importlib
from collections.abc import Callable

from collectives.spec.calls import CALLS, LESSONS
from collectives.spec.form import Form
from collectives.spec.forms import differentiable, functional, move, objects, point_to_point, reduce

_FAMILIES = (point_to_point, reduce, move, objects, functional, differentiable)

FORMS: dict[str, Form] = {
    form.name: form
    for form in sorted(
        (form for family in _FAMILIES for form in family.FORMS),
        key=lambda form: LESSONS.index(form.collective),
    )
}


def called(form: Form) -> str | None:
    """The name under which this torch has the form; None if it has the form under none of its names."""
    spec = CALLS.get(form.name)
    names = spec.names if spec else (form.name, form.newer)
    return next((name for name in names if name and _find(name)), None)


def function(form: Form) -> Callable:
    return _find(called(form))


def _find(name: str) -> Callable | None:
    module, _, attribute = f"torch.distributed.{name}".rpartition(".")
    return getattr(importlib.import_module(module), attribute, None)
