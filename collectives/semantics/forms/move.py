"""The forms that move data as it is: broadcast, the gathers, scatter, all_to_all."""

from typing import Any

import torch

from collectives.semantics.form import Buffer, Case, Form, Function, Plan, received, sent

_VARIANTS = ("noncontiguous", "lazy", "empty", "scalar", "async", "subgroup")


def _from_root(case: Case) -> Plan:
    data = case.moved(case.root)
    return {"tensor": sent(data) if case.is_root else received(data)}


def _broadcast(function: Function, case: Case, buffers: Any) -> Any:
    return function(buffers.tensor, src=case.root, group=case.group, async_op=case.is_async)


def _part(case: Case, rank: int) -> torch.Tensor:
    """What `rank` brings, or what the root has for it."""
    return case.moved(rank, case.lengths()[rank] if case.uneven else None)


def _all(case: Case) -> Plan:
    return {
        "outputs": [received(_part(case, rank)) for rank in range(case.size)],
        "input": sent(_part(case, case.rank)),
    }


def _all_gather(function: Function, case: Case, buffers: Any) -> Any:
    return function(buffers.outputs, buffers.input, group=case.group, async_op=case.is_async)


def _all_in_one(case: Case) -> Plan:
    whole = torch.stack([case.moved(rank) for rank in range(case.size)]).flatten()
    return {"output": received(whole), "input": sent(case.moved(case.rank))}


def _one_to_one(function: Function, case: Case, buffers: Any) -> Any:
    return function(buffers.output, buffers.input, group=case.group, async_op=case.is_async)


def _all_lists(case: Case) -> Plan:
    """Each rank brings a list of tensors, and gets the lists of all ranks."""
    lists = [[case.moved(rank), case.moved(rank + case.size, 3)] for rank in range(case.size)]
    outputs = {
        f"outputs{rank}": [received(tensor) for tensor in tensors]
        for rank, tensors in enumerate(lists)
    }
    return outputs | {"inputs": [sent(tensor) for tensor in lists[case.rank]]}


def _all_gather_coalesced(function: Function, case: Case, buffers: Any) -> Any:
    outputs = [getattr(buffers, f"outputs{rank}") for rank in range(case.size)]
    return function(outputs, buffers.inputs, group=case.group, async_op=case.is_async)


def _gathered_at_root(case: Case) -> Plan:
    return _all(case) if case.is_root else _all(case) | {"outputs": None}


def _gather(function: Function, case: Case, buffers: Any) -> Any:
    return function(
        buffers.input, buffers.outputs, dst=case.root, group=case.group, async_op=case.is_async
    )


def _pieces_of_root(case: Case) -> Plan:
    inputs = [sent(_part(case, rank)) for rank in range(case.size)] if case.is_root else None
    return {"output": received(_part(case, case.rank)), "inputs": inputs}


def _scatter(function: Function, case: Case, buffers: Any) -> Any:
    return function(
        buffers.output, buffers.inputs, src=case.root, group=case.group, async_op=case.is_async
    )


def _pairs(case: Case) -> Plan:
    others = range(case.size)
    return {
        "outputs": [received(case.pair(other, case.rank)) for other in others],
        "inputs": [sent(case.pair(case.rank, other)) for other in others],
    }


def _all_to_all(function: Function, case: Case, buffers: Any) -> Any:
    return function(buffers.outputs, buffers.inputs, group=case.group, async_op=case.is_async)


def _pairs_in_one(case: Case) -> Plan:
    pairs = _pairs(case)
    whole = {name: torch.cat([buffer.after.flatten() for buffer in pairs[name]]) for name in pairs}
    return {"output": Buffer(None, whole["outputs"]), "input": sent(whole["inputs"])}


def splits(case: Case) -> tuple[list[int], list[int]]:
    """How many elements come from each rank, and how many go to each."""
    return [case.lengths(other)[case.rank] for other in range(case.size)], case.lengths(case.rank)


def _all_to_all_single(function: Function, case: Case, buffers: Any) -> Any:
    come, go = splits(case) if case.uneven else (None, None)
    return function(
        buffers.output, buffers.input, come, go, group=case.group, async_op=case.is_async
    )


FORMS = (
    Form("broadcast", "broadcast", _from_root, _broadcast, variants=(*_VARIANTS, "root")),
    Form("all_gather", "all_gather", _all, _all_gather, variants=("uneven", *_VARIANTS)),
    Form(
        "all_gather",
        "all_gather_into_tensor",
        _all_in_one,
        _one_to_one,
        variants=_VARIANTS,
    ),
    Form("all_gather", "all_gather_coalesced", _all_lists, _all_gather_coalesced, dtypes="few"),
    Form("gather", "gather", _gathered_at_root, _gather, variants=("uneven", *_VARIANTS, "root")),
    Form("scatter", "scatter", _pieces_of_root, _scatter, variants=("uneven", *_VARIANTS, "root")),
    Form("all_to_all", "all_to_all", _pairs, _all_to_all, variants=("uneven", *_VARIANTS)),
    Form(
        "all_to_all",
        "all_to_all_single",
        _pairs_in_one,
        _all_to_all_single,
        variants=("uneven", "noncontiguous", "lazy", "empty", "async", "subgroup"),
    ),
)
