"""The differentiable collectives of torch.distributed.nn: what each rank gets, and its gradients.

Backward is the mirror image of forward: where data was gathered, gradients are scattered; where it
was copied to all ranks, gradients are summed. The gradients of rank r's outputs are rank r's term,
so that sums of gradients have a closed form too. A result is a list of the outputs, and one of the
inputs' gradients.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from collectives.semantics.form import ANYTHING, Case, Form, Function, Plan, received, sent


def _call(root: str | None = None) -> Callable[[Function, Case, Any], Any]:
    """Call with the buffers in the order of the plan, and run backward from all outputs."""

    def call(function: Function, case: Case, buffers: Any) -> Any:
        *_, last = vars(buffers).values()
        inputs = last if isinstance(last, list) else [last]
        for tensor in inputs:
            tensor.requires_grad_()
        outputs = function(*vars(buffers).values(), **case.options(root))
        outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
        gradients, start = [], 0
        for output in outputs:
            gradients.append(case.term(case.rank, start, output.numel()).to(output.device))
            start += output.numel()
        torch.autograd.backward(outputs, gradients)
        grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in inputs]
        return [[output.detach() for output in outputs], grads]

    return call


def _broadcast(function: Function, case: Case, buffers: Any) -> Any:
    # The call may write into its input, which autograd forbids for a leaf.
    def on_a_copy(tensor: torch.Tensor, **options: Any) -> Any:
        return function(tensor.clone(), **options)

    return _call("src")(on_a_copy, case, buffers)


def _all(case: Case, make: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
    return [make(rank) for rank in range(case.size)]


def _reduced(case: Case) -> Plan:
    return {"input": sent(case.term(case.rank)), "result": [[case.reduced()], [case.reduced()]]}


def _reduced_at_root(case: Case) -> Plan:
    after = case.reduced() if case.is_root else ANYTHING
    return {
        "input": sent(case.term(case.rank)),
        "result": [[after], [case.term(case.root_in_group)]],
    }


def _from_root(case: Case) -> Plan:
    back = case.reduced() if case.is_root else torch.zeros_like(case.reduced())
    return {
        "input": sent(case.moved(case.rank)),
        "result": [[case.moved(case.root_in_group)], [back]],
    }


def _gathered(case: Case) -> Plan:
    return {
        "input": sent(case.moved(case.rank)),
        "result": [_all(case, case.moved), [case.reduced(case.rank * case.length)]],
    }


def _gathered_at_root(case: Case) -> Plan:
    after = _all(case, case.moved) if case.is_root else [ANYTHING] * case.size
    return {
        "input": sent(case.moved(case.rank)),
        "result": [after, [case.term(case.root_in_group, case.rank * case.length)]],
    }


def _scattered(case: Case) -> Plan:
    back = _all(case, case.term)
    if not case.is_root:
        back = [torch.zeros_like(gradient) for gradient in back]
    return {
        "inputs": [sent(case.moved(rank)) for rank in range(case.size)],
        "result": [[case.moved(case.rank)], back],
    }


def _piece_of_sum(case: Case) -> Plan:
    return {
        "output": received(case.reduced(case.rank * case.length)),
        "inputs": [sent(case.term(case.rank, rank * case.length)) for rank in range(case.size)],
        "result": [[case.reduced(case.rank * case.length)], _all(case, case.term)],
    }


def _pairs(case: Case) -> Plan:
    after = _all(case, lambda other: case.pair(other, case.rank))
    return {
        "outputs": [received(piece) for piece in after],
        "inputs": [sent(case.pair(case.rank, other)) for other in range(case.size)],
        "result": [after, _all(case, lambda other: case.term(other, case.rank * case.length))],
    }


def _pairs_in_one(case: Case) -> Plan:
    pairs = _pairs(case)
    after, back = (torch.cat(part) for part in pairs["result"])
    return {
        "output": received(after),
        "input": sent(torch.cat([buffer.after for buffer in pairs["inputs"]])),
        "result": [[after], [back]],
    }


_form = functools.partial(Form, dtypes="float", variants=("subgroup",))

FORMS = (
    _form("broadcast", "nn.broadcast", _from_root, _broadcast),
    _form("all_reduce", "nn.all_reduce", _reduced, _call(), reduces=True),
    _form("reduce", "nn.reduce", _reduced_at_root, _call("dst"), reduces=True),
    _form("all_gather", "nn.all_gather", _gathered, _call()),
    _form("gather", "nn.gather", _gathered_at_root, _call("dst")),
    _form("scatter", "nn.scatter", _scattered, _call("src")),
    _form("reduce_scatter", "nn.reduce_scatter", _piece_of_sum, _call(), reduces=True),
    _form("all_to_all", "nn.all_to_all", _pairs, _call()),
    _form("all_to_all", "nn.all_to_all_single", _pairs_in_one, _call()),
)
