"""The table of forms: every call of the lessons and its relatives, in reading order."""

import importlib

from collectives.semantics.calls import CALLS, LESSONS
from collectives.semantics.form import Form, Function
from collectives.semantics.forms import (
    differentiable,
    functional,
    move,
    objects,
    point_to_point,
    reduce,
)

_FAMILIES = (point_to_point, reduce, move, objects, functional, differentiable)

FORMS: dict[str, Form] = {
    form.name: form
    for form in sorted(
        (form for family in _FAMILIES for form in family.FORMS),
        key=lambda form: LESSONS.index(form.collective),
    )
}


def called(form: Form) -> str | None:
    """The name under which this torch has the form; None if it has none of the form's names."""
    spec = CALLS.get(form.name)
    names = spec.names if spec else (form.name, form.newer)
    return next((name for name in names if name and _find(name)), None)


def function(form: Form) -> Function:
    """The function of torch.distributed that the form calls."""
    found = _find(called(form) or form.name)
    assert found is not None, f"this torch has no {form.name}"
    return found


def _find(name: str) -> Function | None:
    module, _, attribute = f"torch.distributed.{name}".rpartition(".")
    return getattr(importlib.import_module(module), attribute, None)
