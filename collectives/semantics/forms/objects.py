"""The forms to which the caller brings no tensor: Python objects, barriers and groups."""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from collectives.semantics.form import Case, Form, Function, Plan

# The last rank enters a barrier so much later than the others, in seconds: a rank that leaves
# before that has not waited.
_LATE = 0.05


def _object(rank: int) -> dict[str, Any]:
    """What rank `rank` sends. Each rank's object has another length when it is pickled."""
    return {"from": rank, "list": [rank] * (rank + 1), "text": "é" * rank}


def _objects(case: Case) -> list[dict[str, Any]]:
    return [_object(rank) for rank in range(case.size)]


def _broadcast_objects(case: Case) -> Plan:
    return {"result": [_object(case.root), None]}


def _broadcast_object_list(function: Function, case: Case, buffers: Any) -> Any:
    objects = [_object(case.root), None] if case.is_root else ["poison", "poison"]
    function(objects, src=case.root, group=case.group, device=case.device)
    return objects


def _all_objects(case: Case) -> Plan:
    return {"result": _objects(case)}


def _all_gather_object(function: Function, case: Case, buffers: Any) -> Any:
    found = ["poison"] * case.size
    function(found, _object(case.rank), group=case.group)
    return found


def _objects_at_root(case: Case) -> Plan:
    return {"result": _objects(case) if case.is_root else None}


def _gather_object(function: Function, case: Case, buffers: Any) -> Any:
    found = ["poison"] * case.size if case.is_root else None
    function(_object(case.rank), found, dst=case.root, group=case.group)
    return found


def _own_object(case: Case) -> Plan:
    return {"result": [_object(case.rank)]}


def _scatter_object_list(function: Function, case: Case, buffers: Any) -> Any:
    found = ["poison"]
    function(found, _objects(case) if case.is_root else None, src=case.root, group=case.group)
    return found


def _object_of_previous_rank(case: Case) -> Plan:
    return {"result": [_object(case.rank - 1), None] if case.rank else None}


def _object_chain(function: Function, case: Case, buffers: Any) -> Any:
    """Both calls: each rank receives from the previous one, then sends to the next one."""
    found = ["poison", "poison"] if case.rank else None
    if found:
        dist.recv_object_list(
            found, src=case.ranks[case.rank - 1], group=case.group, device=case.device
        )
    if case.rank < case.size - 1:
        dist.send_object_list(
            [_object(case.rank), None],
            dst=case.ranks[case.rank + 1],
            group=case.group,
            device=case.device,
        )
    return found


def _everyone_entered(case: Case) -> Plan:
    return {"result": list(range(case.size))}


def _wait_for_all(case: Case, wait: Callable[[], Any]) -> list[int]:
    """The ranks that had entered the barrier when it let this one go, as the store knows them."""
    store = dist.distributed_c10d._get_default_store()
    if case.rank == case.size - 1:
        time.sleep(_LATE)
    store.set(f"entered/{case.rank}", "")
    work = wait()
    if work is not None:
        work.wait()
    return [rank for rank in range(case.size) if store.check([f"entered/{rank}"])]


def _barrier(function: Function, case: Case, buffers: Any) -> Any:
    return _wait_for_all(case, lambda: function(group=case.group, async_op=case.is_async))


def _monitored_barrier(function: Function, case: Case, buffers: Any) -> Any:
    return _wait_for_all(case, lambda: function(group=case.group))


def halves(case: Case) -> list[list[int]]:
    """The even and the odd members as two groups; one group where there is one rank."""
    return [half for half in (list(case.ranks[::2]), list(case.ranks[1::2])) if half]


def _own_half(case: Case) -> Plan:
    mine = halves(case)[case.rank % 2]
    return {"result": [mine, mine.index(case.ranks[case.rank]), sum(2**rank for rank in mine)]}


def _facts(case: Case, group: Any) -> list[Any]:
    """The group's members, this rank's number in it, and a sum that shows who took part."""
    total = torch.tensor([2 ** case.ranks[case.rank]], device=case.device)
    dist.all_reduce(total, group=group)
    return [dist.get_process_group_ranks(group), dist.get_rank(group), total.item()]


def _new_group(function: Function, case: Case, buffers: Any) -> Any:
    groups = [function(half) for half in halves(case)]
    return _facts(case, groups[case.rank % 2])


def _new_subgroups_by_enumeration(function: Function, case: Case, buffers: Any) -> Any:
    return _facts(case, function(halves(case))[0])


def _neighbours(case: Case) -> int:
    return 2 if case.size % 2 == 0 else 1


def _own_neighbours(case: Case) -> Plan:
    size = _neighbours(case)
    mine = list(case.ranks[case.rank // size * size :][:size])
    return {"result": [mine, case.rank % size, sum(2**rank for rank in mine)]}


def _new_subgroups(function: Function, case: Case, buffers: Any) -> Any:
    return _facts(case, function(_neighbours(case))[0])


def _split_group(function: Function, case: Case, buffers: Any) -> Any:
    return _facts(case, function(split_ranks=halves(case)))


_form = functools.partial(Form, dtypes="none")

FORMS = (
    _form(
        "send_recv", "send_object_list", _object_of_previous_rank, _object_chain, ("subgroup",), 2
    ),
    _form(
        "send_recv", "recv_object_list", _object_of_previous_rank, _object_chain, ("subgroup",), 2
    ),
    _form(
        "broadcast",
        "broadcast_object_list",
        _broadcast_objects,
        _broadcast_object_list,
        ("subgroup", "root"),
    ),
    _form("all_gather", "all_gather_object", _all_objects, _all_gather_object, ("subgroup",)),
    _form("gather", "gather_object", _objects_at_root, _gather_object, ("subgroup", "root")),
    _form(
        "scatter", "scatter_object_list", _own_object, _scatter_object_list, ("subgroup", "root")
    ),
    _form("barrier", "barrier", _everyone_entered, _barrier, ("async", "subgroup")),
    _form("barrier", "monitored_barrier", _everyone_entered, _monitored_barrier, ("subgroup",)),
    _form("new_group", "new_group", _own_half, _new_group),
    _form("new_group", "new_subgroups", _own_neighbours, _new_subgroups),
    _form("new_group", "new_subgroups_by_enumeration", _own_half, _new_subgroups_by_enumeration),
    _form("new_group", "split_group", _own_half, _split_group),
)
