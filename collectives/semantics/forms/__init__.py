"""The table of forms: every call of the lessons and its relatives, in reading order."""

import importlib

from collectives.semantics.calls import LESSONS
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
    """The name of the form's function; None if this torch has no such function."""
    return form.name if _find(form.name) else None


def function(form: Form) -> Function:
    """The function of torch.distributed that the form calls."""
    found = _find(form.name)
    assert found is not None, f"this torch has no {form.name}"
    return found


def _find(name: str) -> Function | None:
    module, _, attribute = f"torch.distributed.{name}".rpartition(".")
    return getattr(importlib.import_module(module), attribute, None)
