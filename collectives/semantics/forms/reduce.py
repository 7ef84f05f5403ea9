"""The forms that reduce: all_reduce, reduce, reduce_scatter and their relatives."""

import functools
from typing import Any

import torch.distributed as dist

from collectives.semantics.form import (
    ANYTHING,
    Buffer,
    Case,
    Form,
    Function,
    Plan,
    in_order,
    received,
    sent,
)

_VARIANTS = ("noncontiguous", "lazy", "empty", "scalar", "async", "subgroup")


def _in_place(case: Case) -> Plan:
    return {"tensor": Buffer(case.term(case.rank), case.reduced())}


def _to_root(case: Case) -> Plan:
    return {"tensor": Buffer(case.term(case.rank), case.reduced() if case.is_root else ANYTHING)}


def _pieces(case: Case) -> Plan:
    lengths = case.lengths()
    starts = [sum(lengths[:rank]) for rank in range(case.size)]
    pieces = [
        (start, length if case.uneven else None)
        for start, length in zip(starts, lengths, strict=True)
    ]
    return {
        "output": received(case.reduced(*pieces[case.rank])),
        "inputs": [sent(case.term(case.rank, *piece)) for piece in pieces],
    }


def _one_long_input(case: Case) -> Plan:
    return {
        "output": received(case.reduced(case.rank * case.length)),
        "input": sent(case.term(case.rank, 0, case.size * case.length)),
    }


def _several(case: Case) -> Plan:
    """Three tensors that one call reduces together."""
    spans = [(0, None), (1, 2 * case.length), (5, 3)]
    return {"tensors": [Buffer(case.term(case.rank, *span), case.reduced(*span)) for span in spans]}


def _coalescing_manager(function: Function, case: Case, buffers: Any) -> Any:
    with function(group=case.group, device=case.device, async_ops=case.is_async) as manager:
        for tensor in buffers.tensors:
            dist.all_reduce(tensor, op=case.reduce_op, group=case.group)
    return manager if case.is_async else None


_form = functools.partial(Form, reduces=True)

FORMS = (
    _form("all_reduce", "all_reduce", _in_place, in_order(), _VARIANTS),
    _form(
        "all_reduce",
        "all_reduce_coalesced",
        _several,
        in_order(),
        ("noncontiguous",),
        dtypes="few",
    ),
    _form(
        "all_reduce",
        "_coalescing_manager",
        _several,
        _coalescing_manager,
        ("async",),
        dtypes="few",
    ),
    _form("reduce", "reduce", _to_root, in_order("dst"), (*_VARIANTS, "root")),
    _form("reduce_scatter", "reduce_scatter", _pieces, in_order(), ("uneven", *_VARIANTS)),
    _form("reduce_scatter", "reduce_scatter_single", _one_long_input, in_order(), _VARIANTS),
)
