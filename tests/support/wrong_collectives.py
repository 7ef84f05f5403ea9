"""Collectives that do the wrong thing, to prove that the lessons notice.

Each takes the real function and returns a wrong one with the same signature. The wrong ones never
hang: every rank still makes the real call, together with the others.
"""

import functools
from collections.abc import Callable

import torch.distributed as dist


class _Done:
    """A Work that is done from the start."""

    def wait(self):
        return True

    def is_completed(self):
        return True


def _noop(real: Callable) -> Callable:
    """The call returns, and nothing happened."""
    return lambda *args, **kwargs: _Done() if kwargs.get("async_op") else None


def _always_sum(real: Callable) -> Callable:
    """Whatever reduction was asked for, it sums. AVG that sums is one of these."""

    @functools.wraps(real)
    def wrong(*args, **kwargs):
        args = tuple(
            dist.ReduceOp.SUM if isinstance(arg, dist.ReduceOp.RedOpType | dist.ReduceOp) else arg
            for arg in args
        )
        return real(*args, **{**kwargs, **({"op": dist.ReduceOp.SUM} if "op" in kwargs else {})})

    return wrong


def _last_rank_lost(real: Callable) -> Callable:
    """The last rank's contribution is lost."""

    @functools.wraps(real)
    def wrong(tensor, *args, **kwargs):
        if dist.get_rank() == dist.get_world_size() - 1:
            tensor.zero_()
        return real(tensor, *args, **kwargs)

    return wrong


def _root_ignored(word: str, position: int) -> Callable:
    """The root is the first rank of the group, whatever was asked for."""

    def make(real: Callable) -> Callable:
        @functools.wraps(real)
        def wrong(*args, **kwargs):
            group = kwargs.get("group") or dist.group.WORLD
            args = list(args)
            if len(args) > position:
                args[position] = dist.get_global_rank(group, 0)
            elif f"group_{word}" in kwargs:
                kwargs[f"group_{word}"] = 0
            else:
                kwargs[word] = dist.get_global_rank(group, 0)
            return real(*args, **kwargs)

        return wrong

    return make


def _group_ignored(real: Callable) -> Callable:
    """Every group is the whole world."""

    @functools.wraps(real)
    def wrong(*args, **kwargs):
        real(*args, **kwargs)
        return dist.group.WORLD

    return wrong


def _rotated_list(real: Callable) -> Callable:
    """The pieces arrive one place off."""

    @functools.wraps(real)
    def wrong(pieces, *args, **kwargs):
        work = real(pieces, *args, **kwargs)
        if work is not None:
            work.wait()
        copies = [piece.clone() if hasattr(piece, "clone") else piece for piece in pieces or ()]
        for number, copy in enumerate(copies):
            target = (number + 1) % len(copies)
            if hasattr(copy, "clone") and pieces[target].shape == copy.shape:
                pieces[target].copy_(copy)
            else:
                pieces[target] = copy
        return work

    return wrong


def _rotated_tensor(real: Callable) -> Callable:
    """The pieces arrive one place off, in one tensor."""

    @functools.wraps(real)
    def wrong(output, *args, **kwargs):
        work = real(output, *args, **kwargs)
        if work is not None:
            work.wait()
        flat = output.view(-1)
        flat.copy_(flat.roll(flat.numel() // dist.get_world_size(kwargs.get("group"))))
        return work

    return wrong


def _rotated_gather(real: Callable) -> Callable:
    """The root's pieces arrive one place off."""

    @functools.wraps(real)
    def wrong(tensor, gather_list=None, *args, **kwargs):
        work = real(tensor, gather_list, *args, **kwargs)
        if gather_list:
            copies = [piece.clone() if hasattr(piece, "clone") else piece for piece in gather_list]
            for number, copy in enumerate(copies):
                gather_list[(number + 1) % len(copies)] = copy
        return work

    return wrong


def _rotated_scatter(real: Callable) -> Callable:
    """The root hands out its pieces one place off."""

    @functools.wraps(real)
    def wrong(tensor, scatter_list=None, *args, **kwargs):
        if scatter_list:
            scatter_list = [*scatter_list[1:], scatter_list[0]]
        return real(tensor, scatter_list, *args, **kwargs)

    return wrong


def _not_reduced_list(real: Callable) -> Callable:
    """Each rank keeps its own piece: nothing is summed."""

    @functools.wraps(real)
    def wrong(output, input_list, *args, **kwargs):
        own = input_list[dist.get_rank(kwargs.get("group"))].clone()
        work = real(output, input_list, *args, **kwargs)
        output.copy_(own)
        return work

    return wrong


def _not_reduced_tensor(real: Callable) -> Callable:
    """Each rank keeps its own piece: nothing is summed."""

    @functools.wraps(real)
    def wrong(output, input, *args, **kwargs):
        own = input.reshape(-1)[dist.get_rank(kwargs.get("group")) * output.numel() :][
            : output.numel()
        ].clone()
        work = real(output, input, *args, **kwargs)
        output.copy_(own.view_as(output))
        return work

    return wrong


def _input_returned_list(real: Callable) -> Callable:
    """What was to be sent is what arrives."""

    @functools.wraps(real)
    def wrong(outputs, inputs, *args, **kwargs):
        work = real(outputs, inputs, *args, **kwargs)
        for output, input in zip(outputs, inputs, strict=True):
            output.view(-1)[: input.numel()].copy_(input.reshape(-1)[: output.numel()])
        return work

    return wrong


def _input_returned_tensor(real: Callable) -> Callable:
    """What was to be sent is what arrives."""

    @functools.wraps(real)
    def wrong(output, input, *args, **kwargs):
        work = real(output, input, *args, **kwargs)
        length = min(output.numel(), input.numel())
        output.view(-1)[:length].copy_(input.reshape(-1)[:length])
        return work

    return wrong


def _buffer_untouched(real: Callable) -> Callable:
    """The message arrives, but not in the buffer that was given."""

    @functools.wraps(real)
    def wrong(tensor, *args, **kwargs):
        return real(tensor.clone(), *args, **kwargs)

    return wrong


def _message_zeroed(real: Callable) -> Callable:
    """A message is sent, but not the one that was given."""

    @functools.wraps(real)
    def wrong(tensor, *args, **kwargs):
        return real(tensor.new_zeros(tensor.shape), *args, **kwargs)

    return wrong


def _finished_too_soon(real: Callable) -> Callable:
    """Nothing is exchanged at all."""
    return lambda operations: []


# What is wrong -> (the function of torch.distributed, how to make it wrong).
WRONG: dict[str, tuple[str, Callable]] = {
    "all_reduce that does nothing": ("all_reduce", _noop),
    "all_reduce that sums whatever is asked": ("all_reduce", _always_sum),
    "all_reduce that loses the last rank": ("all_reduce", _last_rank_lost),
    "reduce that does nothing": ("reduce", _noop),
    "reduce that ignores its root": ("reduce", _root_ignored("dst", 1)),
    "reduce that loses the last rank": ("reduce", _last_rank_lost),
    "broadcast that does nothing": ("broadcast", _noop),
    "broadcast that ignores its root": ("broadcast", _root_ignored("src", 1)),
    "broadcast_object_list that does nothing": ("broadcast_object_list", _noop),
    "all_gather that permutes": ("all_gather", _rotated_list),
    "all_gather_into_tensor that permutes": ("all_gather_into_tensor", _rotated_tensor),
    "all_gather_object that permutes": ("all_gather_object", _rotated_list),
    "gather that permutes": ("gather", _rotated_gather),
    "gather_object that permutes": ("gather_object", _rotated_gather),
    "scatter that permutes": ("scatter", _rotated_scatter),
    "reduce_scatter that does not reduce": ("reduce_scatter", _not_reduced_list),
    "reduce_scatter_tensor that does not reduce": ("reduce_scatter_tensor", _not_reduced_tensor),
    "all_to_all that returns its input": ("all_to_all", _input_returned_list),
    "all_to_all_single that returns its input": ("all_to_all_single", _input_returned_tensor),
    "barrier that does nothing": ("barrier", _noop),
    "monitored_barrier that does nothing": ("monitored_barrier", _noop),
    "new_group that is the whole world": ("new_group", _group_ignored),
    "recv that leaves the buffer": ("recv", _buffer_untouched),
    "send of another message": ("send", _message_zeroed),
    "irecv that leaves the buffer": ("irecv", _buffer_untouched),
    "isend of another message": ("isend", _message_zeroed),
    "batch_isend_irecv that does nothing": ("batch_isend_irecv", _finished_too_soon),
}
