"""The forms that move data as it is: broadcast, the gathers, scatter, all_to_all."""

import torch

from collectives.semantics.form import Buffer, Case, Form, Plan, in_order, received, sent

_VARIANTS = ("noncontiguous", "lazy", "empty", "scalar", "async", "subgroup")


def _from_root(case: Case) -> Plan:
    data = case.moved(case.root)
    return {"tensor": sent(data) if case.is_root else received(data)}


def _part(case: Case, rank: int) -> torch.Tensor:
    """What `rank` brings, or what the root has for it."""
    return case.moved(rank, case.lengths()[rank] if case.uneven else None)


def _all(case: Case) -> Plan:
    return {
        "outputs": [received(_part(case, rank)) for rank in range(case.size)],
        "input": sent(_part(case, case.rank)),
    }


def _all_in_one(case: Case) -> Plan:
    whole = torch.stack([case.moved(rank) for rank in range(case.size)]).flatten()
    return {"output": received(whole), "input": sent(case.moved(case.rank))}


def _all_lists(case: Case) -> Plan:
    """Each rank brings a list of tensors, and gets the lists of all ranks."""
    lists = [[case.moved(rank), case.moved(rank + case.size, 3)] for rank in range(case.size)]
    return {
        "outputs": [[received(tensor) for tensor in tensors] for tensors in lists],
        "inputs": [sent(tensor) for tensor in lists[case.rank]],
    }


def _at_root(case: Case) -> Plan:
    plan = _all(case)
    return {"input": plan["input"], "outputs": plan["outputs"] if case.is_root else None}


def _in_one_at_root(case: Case) -> Plan:
    plan = _all_in_one(case)
    return {"input": plan["input"], "output": plan["output"] if case.is_root else None}


def _pieces_of_root(case: Case) -> Plan:
    inputs = [sent(_part(case, rank)) for rank in range(case.size)] if case.is_root else None
    return {"output": received(_part(case, case.rank)), "inputs": inputs}


def _pairs(case: Case) -> Plan:
    others = range(case.size)
    return {
        "outputs": [received(case.pair(other, case.rank)) for other in others],
        "inputs": [sent(case.pair(case.rank, other)) for other in others],
    }


def _pairs_in_one(case: Case) -> Plan:
    pairs = _pairs(case)
    whole = {name: torch.cat([buffer.after.flatten() for buffer in pairs[name]]) for name in pairs}
    come, go = splits(case) if case.uneven else (None, None)
    return {
        "output": Buffer(None, whole["outputs"]),
        "input": sent(whole["inputs"]),
        "come": come,
        "go": go,
    }


def splits(case: Case) -> tuple[list[int], list[int]]:
    """How many elements come from each rank, and how many go to each."""
    return [case.lengths(other)[case.rank] for other in range(case.size)], case.lengths(case.rank)


FORMS = (
    Form("broadcast", "broadcast", _from_root, in_order("src"), (*_VARIANTS, "root")),
    Form("all_gather", "all_gather", _all, in_order(), ("uneven", *_VARIANTS)),
    Form("all_gather", "all_gather_single", _all_in_one, in_order(), _VARIANTS),
    Form("all_gather", "all_gather_coalesced", _all_lists, in_order(), dtypes="few"),
    Form("gather", "gather", _at_root, in_order("dst"), ("uneven", *_VARIANTS, "root")),
    Form("gather", "gather_single", _in_one_at_root, in_order("dst"), (*_VARIANTS, "root")),
    Form("scatter", "scatter", _pieces_of_root, in_order("src"), ("uneven", *_VARIANTS, "root")),
    Form("all_to_all", "all_to_all", _pairs, in_order(), ("uneven", *_VARIANTS)),
    Form(
        "all_to_all",
        "all_to_all_single",
        _pairs_in_one,
        in_order(),
        ("uneven", "noncontiguous", "lazy", "empty", "async", "subgroup"),
    ),
)
