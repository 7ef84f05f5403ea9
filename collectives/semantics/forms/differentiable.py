"""The differentiable collectives of torch.distributed.nn: what each rank gets, and its gradients.

Backward is the mirror image of forward: where data was gathered, gradients are scattered; where it
was copied to all ranks, gradients are summed. The gradient of rank r's output is rank r's term, so
that sums of gradients have a closed form too.
"""

from collections.abc import Callable
from typing import Any

import torch

from collectives.semantics.form import ANYTHING, Case, Form, Function, Plan, received, sent


def _back(outputs: Any, gradients: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[Any]:
    """Run backward. Return a list of the outputs, and a list of the inputs' gradients."""
    outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    torch.autograd.backward(
        outputs,
        [gradient.to(output.device) for output, gradient in zip(outputs, gradients, strict=True)],
    )
    grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in inputs]
    return [[output.detach() for output in outputs], grads]


def _gradients(case: Case, count: int) -> list[torch.Tensor]:
    """The gradients of this rank's outputs."""
    return [case.term(case.rank, piece * case.length) for piece in range(count)]


def _all(case: Case, make: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
    return [make(rank) for rank in range(case.size)]


def _reduced(case: Case) -> Plan:
    return {"input": sent(case.term(case.rank)), "result": [[case.reduced()], [case.reduced()]]}


def _all_reduce(function: Function, case: Case, buffers: Any) -> Any:
    return _back(
        function(buffers.input.requires_grad_(), case.reduce_op, case.group),
        _gradients(case, 1),
        [buffers.input],
    )


def _reduced_at_root(case: Case) -> Plan:
    after = case.reduced() if case.is_root else ANYTHING
    return {
        "input": sent(case.term(case.rank)),
        "result": [[after], [case.term(case.root_in_group)]],
    }


def _reduce(function: Function, case: Case, buffers: Any) -> Any:
    output = function(buffers.input.requires_grad_(), case.root, case.reduce_op, case.group)
    return _back(output, _gradients(case, 1), [buffers.input])


def _from_root(case: Case) -> Plan:
    back = case.reduced() if case.is_root else torch.zeros_like(case.reduced())
    return {
        "input": sent(case.moved(case.rank)),
        "result": [[case.moved(case.root_in_group)], [back]],
    }


def _broadcast(function: Function, case: Case, buffers: Any) -> Any:
    # The call may write into its input, which autograd forbids for a leaf: hence the clone.
    return _back(
        function(buffers.input.requires_grad_().clone(), case.root, case.group),
        _gradients(case, 1),
        [buffers.input],
    )


def _gathered(case: Case) -> Plan:
    return {
        "input": sent(case.moved(case.rank)),
        "result": [_all(case, case.moved), [case.reduced(case.rank * case.length)]],
    }


def _all_gather(function: Function, case: Case, buffers: Any) -> Any:
    return _back(
        function(buffers.input.requires_grad_(), case.group),
        _gradients(case, case.size),
        [buffers.input],
    )


def _gathered_at_root(case: Case) -> Plan:
    after = _all(case, case.moved) if case.is_root else [ANYTHING] * case.size
    return {
        "input": sent(case.moved(case.rank)),
        "result": [after, [case.term(case.root_in_group, case.rank * case.length)]],
    }


def _gather(function: Function, case: Case, buffers: Any) -> Any:
    return _back(
        function(buffers.input.requires_grad_(), case.root, case.group),
        _gradients(case, case.size),
        [buffers.input],
    )


def _scattered(case: Case) -> Plan:
    back = _all(case, case.term)
    if not case.is_root:
        back = [torch.zeros_like(gradient) for gradient in back]
    return {
        "inputs": [sent(case.moved(rank)) for rank in range(case.size)],
        "result": [[case.moved(case.rank)], back],
    }


def _scatter(function: Function, case: Case, buffers: Any) -> Any:
    inputs = [tensor.requires_grad_() for tensor in buffers.inputs]
    return _back(function(inputs, case.root, case.group), _gradients(case, 1), inputs)


def _piece_of_sum(case: Case) -> Plan:
    return {
        "output": received(case.reduced(case.rank * case.length)),
        "inputs": [sent(case.term(case.rank, rank * case.length)) for rank in range(case.size)],
        "result": [[case.reduced(case.rank * case.length)], _all(case, case.term)],
    }


def _reduce_scatter(function: Function, case: Case, buffers: Any) -> Any:
    inputs = [tensor.requires_grad_() for tensor in buffers.inputs]
    return _back(
        function(buffers.output, inputs, case.reduce_op, case.group), _gradients(case, 1), inputs
    )


def _pairs(case: Case) -> Plan:
    after = _all(case, lambda other: case.pair(other, case.rank))
    return {
        "outputs": [received(piece) for piece in after],
        "inputs": [sent(case.pair(case.rank, other)) for other in range(case.size)],
        "result": [after, _all(case, lambda other: case.term(other, case.rank * case.length))],
    }


def _all_to_all(function: Function, case: Case, buffers: Any) -> Any:
    inputs = [tensor.requires_grad_() for tensor in buffers.inputs]
    return _back(function(buffers.outputs, inputs, case.group), _gradients(case, case.size), inputs)


def _pairs_in_one(case: Case) -> Plan:
    pairs = _pairs(case)
    after, back = (torch.cat(part) for part in pairs["result"])
    return {
        "output": received(after),
        "input": sent(torch.cat([buffer.after for buffer in pairs["inputs"]])),
        "result": [[after], [back]],
    }


def _all_to_all_single(function: Function, case: Case, buffers: Any) -> Any:
    output = function(buffers.output, buffers.input.requires_grad_(), group=case.group)
    return _back(output, [torch.cat(_gradients(case, case.size))], [buffers.input])


def _form(
    collective: str,
    name: str,
    plan: Callable[[Case], Plan],
    call: Callable[[Function, Case, Any], Any],
    reduces: bool = False,
) -> Form:
    return Form(
        collective,
        f"nn.{name}",
        plan,
        call,
        reduces=reduces,
        dtypes="float",
        variants=("subgroup",),
    )


FORMS = (
    _form("broadcast", "broadcast", _from_root, _broadcast),
    _form("all_reduce", "all_reduce", _reduced, _all_reduce, True),
    _form("reduce", "reduce", _reduced_at_root, _reduce, True),
    _form("all_gather", "all_gather", _gathered, _all_gather),
    _form("gather", "gather", _gathered_at_root, _gather),
    _form("scatter", "scatter", _scattered, _scatter),
    _form("reduce_scatter", "reduce_scatter", _piece_of_sum, _reduce_scatter, True),
    _form("all_to_all", "all_to_all", _pairs, _all_to_all),
    _form("all_to_all", "all_to_all_single", _pairs_in_one, _all_to_all_single),
)
