"""The forms between two ranks: data goes along the chain of ranks, 0 to 1 to 2, so that no two wait for each other."""

import torch.distributed as dist

from collectives.spec.form import Form, received, sent

_VARIANTS = ("noncontiguous", "empty", "scalar", "subgroup")


def _chain(case, messages=1):
    """Each rank but the last sends; each but the first receives."""
    first, last = case.rank == 0, case.rank == case.size - 1
    return {
        "outgoing": []
        if last
        else [sent(case.moved(2 * case.rank + number)) for number in range(messages)],
        "incoming": []
        if first
        else [received(case.moved(2 * case.rank - 2 + number)) for number in range(messages)],
    }


def _messages(case):
    return _chain(case, 2 if case.variant == "tag" else 1)


def _messages_and_source(case):
    """recv also says where the message came from."""
    return _messages(case) | {
        "result": [case.ranks[case.rank - 1]] * len(_messages(case)["incoming"])
    }


def _tags(tensors) -> list[tuple[int, object]]:
    return [(7 + number, tensor) for number, tensor in enumerate(tensors)]


def _send(function, case, its):
    """Where there are tags, the receiver asks for the second message first."""
    _wait(
        dist.irecv(tensor, case.ranks[case.rank - 1], case.group, tag)
        for tag, tensor in reversed(_tags(its.incoming))
    )
    for tag, tensor in _tags(its.outgoing):
        function(tensor, case.ranks[case.rank + 1], group=case.group, tag=tag)


def _isend(function, case, its):
    for tag, tensor in reversed(_tags(its.incoming)):
        dist.recv(tensor, case.ranks[case.rank - 1], case.group, tag)
    _wait(
        function(tensor, case.ranks[case.rank + 1], group=case.group, tag=tag)
        for tag, tensor in _tags(its.outgoing)
    )


def _recv(function, case, its):
    source = None if case.variant == "any_source" else case.ranks[case.rank - 1]
    found = [
        function(tensor, source, group=case.group, tag=tag)
        for tag, tensor in reversed(_tags(its.incoming))
    ]
    _wait(
        dist.isend(tensor, case.ranks[case.rank + 1], case.group, tag)
        for tag, tensor in _tags(its.outgoing)
    )
    return found


def _irecv(function, case, its):
    source = None if case.variant == "any_source" else case.ranks[case.rank - 1]
    _wait(
        function(tensor, source, group=case.group, tag=tag)
        for tag, tensor in reversed(_tags(its.incoming))
    )
    _wait(
        dist.isend(tensor, case.ranks[case.rank + 1], case.group, tag)
        for tag, tensor in _tags(its.outgoing)
    )


def _wait(works) -> None:
    for work in list(works):  # all are under way before the first is waited for
        work.wait()


def _ring(case):
    return {
        "outgoing": sent(case.moved(case.rank)),
        "incoming": received(case.moved((case.rank - 1) % case.size)),
    }


def _batch_isend_irecv(function, case, its):
    after, before = case.ranks[(case.rank + 1) % case.size], case.ranks[case.rank - 1]
    operations = [
        dist.P2POp(dist.isend, its.outgoing, after, case.group),
        dist.P2POp(dist.irecv, its.incoming, before, case.group),
    ]
    _wait(function(operations))


FORMS = (
    Form("send_recv", "send", _messages, _send, variants=(*_VARIANTS, "tag"), fewest=2),
    Form(
        "send_recv",
        "recv",
        _messages_and_source,
        _recv,
        variants=(*_VARIANTS, "any_source", "tag"),
        fewest=2,
    ),
    Form("isend_irecv", "isend", _messages, _isend, variants=(*_VARIANTS, "tag"), fewest=2),
    Form(
        "isend_irecv",
        "irecv",
        _messages,
        _irecv,
        variants=(*_VARIANTS, "any_source", "tag"),
        fewest=2,
    ),
    Form(
        "isend_irecv", "batch_isend_irecv", _ring, _batch_isend_irecv, variants=_VARIANTS, fewest=2
    ),
)
