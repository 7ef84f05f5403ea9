"""The functional collectives.

They leave their input alone and return a new tensor, which is complete when it is first used.
"""

from collections.abc import Callable
from typing import Any

import torch

from collectives.semantics.form import Case, Form, Function, Plan, sent
from collectives.semantics.forms.move import splits


def _wait(result: Any) -> Any:
    """The plain tensors in the result of a functional collective, complete."""
    from torch.distributed import _functional_collectives as functional

    if isinstance(result, list | tuple):
        return [_wait(tensor) for tensor in result]
    return functional.wait_tensor(result)


def _op(case: Case) -> str:
    return str(case.op).lower()


def _reduced(case: Case) -> Plan:
    return {"input": sent(case.term(case.rank)), "result": case.reduced()}


def _all_reduce(function: Function, case: Case, buffers: Any) -> Any:
    return _wait(function(buffers.input, _op(case), case.group))


def _several(case: Case) -> Plan:
    spans = [(0, None), (1, 2 * case.length)]
    return {
        "inputs": [sent(case.term(case.rank, *span)) for span in spans],
        "result": [case.reduced(*span) for span in spans],
    }


def _all_reduce_coalesced(function: Function, case: Case, buffers: Any) -> Any:
    return _wait(function(buffers.inputs, _op(case), case.group))


def _from_root(case: Case) -> Plan:
    return {"input": sent(case.moved(case.rank)), "result": case.moved(case.root)}


def _broadcast(function: Function, case: Case, buffers: Any) -> Any:
    return _wait(function(buffers.input, case.root, case.group))


def _gathered(case: Case) -> Plan:
    return {
        "input": sent(case.moved(case.rank)),
        "result": torch.cat([case.moved(rank) for rank in range(case.size)]),
    }


def _all_gather_tensor(function: Function, case: Case, buffers: Any) -> Any:
    return _wait(function(buffers.input, 0, case.group))


def _several_gathered(case: Case) -> Plan:
    def whole(shift: int) -> torch.Tensor:
        return torch.cat([case.moved(rank + shift) for rank in range(case.size)])

    shifts = (0, case.size)
    return {
        "inputs": [sent(case.moved(case.rank + shift)) for shift in shifts],
        "result": [whole(shift) for shift in shifts],
    }


def _all_gather_coalesced(function: Function, case: Case, buffers: Any) -> Any:
    return _wait(function(buffers.inputs, case.group))


def _piece_of_sum(case: Case) -> Plan:
    return {
        "input": sent(case.term(case.rank, 0, case.size * case.length)),
        "result": case.reduced(case.rank * case.length),
    }


def _reduce_scatter_tensor(function: Function, case: Case, buffers: Any) -> Any:
    return _wait(function(buffers.input, _op(case), 0, case.group))


def _several_pieces(case: Case) -> Plan:
    shifts = (0, 1)
    return {
        "inputs": [sent(case.term(case.rank, shift, case.size * case.length)) for shift in shifts],
        "result": [case.reduced(shift + case.rank * case.length) for shift in shifts],
    }


def _reduce_scatter_coalesced(function: Function, case: Case, buffers: Any) -> Any:
    return _wait(function(buffers.inputs, _op(case), [0, 0], case.group))


def _pairs(case: Case) -> Plan:
    others = range(case.size)
    return {
        "input": sent(torch.cat([case.pair(case.rank, other) for other in others])),
        "result": torch.cat([case.pair(other, case.rank) for other in others]),
    }


def _all_to_all_single(function: Function, case: Case, buffers: Any) -> Any:
    come, go = splits(case)
    return _wait(function(buffers.input, come, go, case.group))


def _from_previous_rank(case: Case) -> Plan:
    return {"input": sent(case.moved(case.rank)), "result": case.moved((case.rank - 1) % case.size)}


def _permute_tensor(function: Function, case: Case, buffers: Any) -> Any:
    targets = [(rank + 1) % case.size for rank in range(case.size)]
    return _wait(function(buffers.input, targets, case.group))


def _form(
    collective: str,
    name: str,
    plan: Callable[[Case], Plan],
    call: Callable[[Function, Case, Any], Any],
    reduces: bool = False,
    newer: str | None = None,
    variants: tuple[str, ...] = ("subgroup",),
) -> Form:
    newer = newer and f"_functional_collectives.{newer}"
    name = f"_functional_collectives.{name}"
    return Form(collective, name, plan, call, newer, reduces, dtypes="few", variants=variants)


FORMS = (
    _form("broadcast", "broadcast", _from_root, _broadcast),
    _form("all_reduce", "all_reduce", _reduced, _all_reduce, True),
    _form("all_reduce", "all_reduce_coalesced", _several, _all_reduce_coalesced, True),
    _form(
        "all_gather", "all_gather_tensor", _gathered, _all_gather_tensor, newer="all_gather_single"
    ),
    _form(
        "all_gather",
        "all_gather_into_tensor_coalesced",
        _several_gathered,
        _all_gather_coalesced,
        newer="all_gather_single_coalesced",
    ),
    _form(
        "reduce_scatter",
        "reduce_scatter_tensor",
        _piece_of_sum,
        _reduce_scatter_tensor,
        True,
        "reduce_scatter_single",
    ),
    _form(
        "reduce_scatter",
        "reduce_scatter_tensor_coalesced",
        _several_pieces,
        _reduce_scatter_coalesced,
        True,
        "reduce_scatter_single_coalesced",
    ),
    _form(
        "all_to_all",
        "all_to_all_single",
        _pairs,
        _all_to_all_single,
        variants=("uneven", "subgroup"),
    ),
    _form("all_to_all", "permute_tensor", _from_previous_rank, _permute_tensor, variants=()),
)
