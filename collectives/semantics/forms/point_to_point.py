"""The forms between two ranks.

Data goes along the chain of ranks, 0 to 1 to 2, so that no two ranks wait for each other.
"""

import functools
from typing import Any

import torch.distributed as dist

from collectives.semantics.form import Case, Form, Function, Plan, received, sent

_VARIANTS = ("noncontiguous", "empty", "scalar", "subgroup")


def _messages(case: Case) -> Plan:
    """Each rank but the last sends; each but the first receives."""
    numbers = range(2 if case.variant == "tag" else 1)
    outgoing = [sent(case.moved(2 * case.rank + number)) for number in numbers]
    incoming = [received(case.moved(2 * case.rank - 2 + number)) for number in numbers]
    return {
        "outgoing": outgoing if case.rank < case.size - 1 else [],
        "incoming": incoming if case.rank > 0 else [],
    }


def _messages_and_source(case: Case) -> Plan:
    """recv also returns the source of the message."""
    plan = _messages(case)
    return plan | {"result": [case.ranks[case.rank - 1]] * len(plan["incoming"])}


def _tags(tensors: list[Any]) -> list[tuple[int, Any]]:
    """Each tensor with the tag of its message."""
    return [(7 + number, tensor) for number, tensor in enumerate(tensors)]


def _send(function: Function, case: Case, buffers: Any) -> Any:
    return _pass_on(case, buffers, dist.irecv, function, blocking=function)


def _isend(function: Function, case: Case, buffers: Any) -> Any:
    return _pass_on(case, buffers, dist.recv, function, blocking=dist.recv)


def _recv(function: Function, case: Case, buffers: Any) -> Any:
    return _pass_on(case, buffers, function, dist.isend, blocking=function)


def _irecv(function: Function, case: Case, buffers: Any) -> Any:
    return _pass_on(case, buffers, function, dist.isend, blocking=None)


def _pass_on(
    case: Case, buffers: Any, receive: Function, send: Function, blocking: Function | None
) -> list[Any]:
    """Receive, then send. Returns what `receive` did; `blocking` is the one that gives no Work.

    The receiver asks for the last message first: the tag decides which message it gets.
    """
    source = None if case.variant == "any_source" else case.ranks[case.rank - 1]
    came = [
        receive(tensor, source, group=case.group, tag=tag)
        for tag, tensor in reversed(_tags(buffers.incoming))
    ]
    if receive is not blocking:
        _wait(came)
    works = [
        send(tensor, case.ranks[case.rank + 1], group=case.group, tag=tag)
        for tag, tensor in _tags(buffers.outgoing)
    ]
    if send is not blocking:
        _wait(works)
    return came


def _wait(works: list[Any]) -> None:
    for work in works:
        work.wait()


def _ring(case: Case) -> Plan:
    return {
        "outgoing": sent(case.moved(case.rank)),
        "incoming": received(case.moved((case.rank - 1) % case.size)),
    }


def _batch_isend_irecv(function: Function, case: Case, buffers: Any) -> Any:
    after, before = case.ranks[(case.rank + 1) % case.size], case.ranks[case.rank - 1]
    operations = [
        dist.P2POp(dist.isend, buffers.outgoing, after, case.group),
        dist.P2POp(dist.irecv, buffers.incoming, before, case.group),
    ]
    _wait(function(operations))


_form = functools.partial(Form, fewest=2)

FORMS = (
    _form("send_recv", "send", _messages, _send, (*_VARIANTS, "lazy", "tag")),
    _form(
        "send_recv",
        "recv",
        _messages_and_source,
        _recv,
        (*_VARIANTS, "lazy", "any_source", "tag"),
    ),
    _form("isend_irecv", "isend", _messages, _isend, (*_VARIANTS, "tag")),
    _form("isend_irecv", "irecv", _messages, _irecv, (*_VARIANTS, "any_source", "tag")),
    _form("isend_irecv", "batch_isend_irecv", _ring, _batch_isend_irecv, _VARIANTS),
)
