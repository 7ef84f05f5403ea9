"""The functional collectives.

They leave their input alone and return a new tensor, which is complete when it is first used. Each
plan has the arguments of its call, in their order.
"""

from collections.abc import Callable
from typing import Any

import torch

from collectives.semantics.form import Case, Form, Function, Plan, sent
from collectives.semantics.forms.move import splits


def _call(function: Function, case: Case, buffers: Any) -> Any:
    return _wait(function(*vars(buffers).values(), case.group))


def _wait(result: Any) -> Any:
    """The plain tensors in the result of a functional collective, complete."""
    from torch.distributed import _functional_collectives as functional

    if isinstance(result, list | tuple):
        return [_wait(tensor) for tensor in result]
    return functional.wait_tensor(result)


def _op(case: Case) -> str:
    return str(case.op).lower()


def _reduced(case: Case) -> Plan:
    return {"input": sent(case.term(case.rank)), "op": _op(case), "result": case.reduced()}


def _several(case: Case) -> Plan:
    spans = [(0, None), (1, 2 * case.length)]
    return {
        "inputs": [sent(case.term(case.rank, *span)) for span in spans],
        "op": _op(case),
        "result": [case.reduced(*span) for span in spans],
    }


def _from_root(case: Case) -> Plan:
    data = case.moved(case.rank)
    return {"input": sent(data), "root": case.root, "result": case.moved(case.root)}


def _whole(case: Case, shift: int = 0) -> torch.Tensor:
    return torch.cat([case.moved(rank + shift) for rank in range(case.size)])


def _gathered(case: Case) -> Plan:
    return {"input": sent(case.moved(case.rank)), "dimension": 0, "result": _whole(case)}


def _several_gathered(case: Case) -> Plan:
    shifts = (0, case.size)
    return {
        "inputs": [sent(case.moved(case.rank + shift)) for shift in shifts],
        "result": [_whole(case, shift) for shift in shifts],
    }


def _piece_of_sum(case: Case) -> Plan:
    return {
        "input": sent(case.term(case.rank, 0, case.size * case.length)),
        "op": _op(case),
        "dimension": 0,
        "result": case.reduced(case.rank * case.length),
    }


def _several_pieces(case: Case) -> Plan:
    shifts = (0, 1)
    return {
        "inputs": [sent(case.term(case.rank, shift, case.size * case.length)) for shift in shifts],
        "op": _op(case),
        "dimensions": [0, 0],
        "result": [case.reduced(shift + case.rank * case.length) for shift in shifts],
    }


def _pairs(case: Case) -> Plan:
    others = range(case.size)
    come, go = splits(case)
    return {
        "input": sent(torch.cat([case.pair(case.rank, other) for other in others])),
        "come": come,
        "go": go,
        "result": torch.cat([case.pair(other, case.rank) for other in others]),
    }


def _from_previous_rank(case: Case) -> Plan:
    return {
        "input": sent(case.moved(case.rank)),
        "targets": [(rank + 1) % case.size for rank in range(case.size)],
        "result": case.moved((case.rank - 1) % case.size),
    }


def _form(
    collective: str,
    name: str,
    plan: Callable[[Case], Plan],
    reduces: bool = False,
    variants: tuple[str, ...] = ("subgroup",),
) -> Form:
    name = f"_functional_collectives.{name}"
    return Form(collective, name, plan, _call, variants, reduces=reduces, dtypes="few")


FORMS = (
    _form("broadcast", "broadcast", _from_root),
    _form("all_reduce", "all_reduce", _reduced, True),
    _form("all_reduce", "all_reduce_coalesced", _several, True),
    _form("all_gather", "all_gather_single", _gathered),
    _form("all_gather", "all_gather_single_coalesced", _several_gathered),
    _form("reduce_scatter", "reduce_scatter_single", _piece_of_sum, True),
    _form("reduce_scatter", "reduce_scatter_single_coalesced", _several_pieces, True),
    _form("all_to_all", "all_to_all_single", _pairs, variants=("uneven", "subgroup")),
    _form("all_to_all", "permute_tensor", _from_previous_rank, variants=()),
)
