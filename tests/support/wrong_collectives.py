"""Collectives that do the wrong thing, to prove that the lessons notice.

Each takes the real function and returns a wrong one with the same signature. The wrong ones never
hang: every rank still makes the real call, together with the others.
"""

import functools
import inspect
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist


class LeftOut:
    """The result of a call that is not made: a finished Work, or a list of none."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True

    def __iter__(self):
        return iter(())


def noop(real: Callable) -> Callable:
    """The call returns, and nothing happened."""
    return lambda *args, **kwargs: LeftOut() if kwargs.get("async_op") else None


def _wrong(change: Callable[[dict], Iterator[None]]) -> Callable[[Callable], Callable]:
    """`change` is given the arguments by name. The real call is made where it yields."""

    def make(real: Callable) -> Callable:
        @functools.wraps(real)
        def wrong(*args, **kwargs):
            given = inspect.signature(real).bind(*args, **kwargs)
            given.apply_defaults()
            changing = change(given.arguments)
            next(changing)
            work = real(*given.args, **given.kwargs)
            if given.arguments.get("async_op") and work is not None:
                work.wait()
            next(changing, None)
            return work

        return wrong

    return make


@_wrong
def always_sum(given):
    """Whatever reduction was asked for, it sums. AVG that sums is one of these."""
    given["op"] = dist.ReduceOp.SUM
    yield


@_wrong
def last_rank_lost(given):
    """The last rank's contribution is lost."""
    if dist.get_rank() == dist.get_world_size() - 1:
        given["tensor"].zero_()
    yield


@_wrong
def root_ignored(given):
    """The root is the first rank of the group, whatever was asked for."""
    root = "dst" if "dst" in given else "src"
    given |= {root: None, f"group_{root}": 0}
    yield


def group_ignored(real: Callable) -> Callable:
    """Every group is the whole world."""

    @functools.wraps(real)
    def wrong(*args, **kwargs):
        real(*args, **kwargs)
        return dist.group.WORLD

    return wrong


def _permutes(name: str) -> Callable[[Callable], Callable]:
    @_wrong
    def permutes(given):
        """The pieces in this argument arrive one place off."""
        yield
        pieces = given[name]
        if isinstance(pieces, torch.Tensor):
            pieces = list(pieces.view(dist.get_world_size(given["group"]), -1))
        copies = [piece.clone() if hasattr(piece, "clone") else piece for piece in pieces or ()]
        for number, copy in enumerate(copies):
            target = (number + 1) % len(copies)
            if hasattr(copy, "clone") and pieces[target].shape == copy.shape:
                pieces[target].copy_(copy)
            else:
                pieces[target] = copy

    return permutes


all_gather_permutes = _permutes("tensor_list")
all_gather_single_permutes = _permutes("output_tensor")
gather_permutes = _permutes("gather_list")


@_wrong
def scatter_permutes(given):
    """The root hands out its pieces one place off."""
    if given["scatter_list"]:
        given["scatter_list"] = [*given["scatter_list"][1:], given["scatter_list"][0]]
    yield


@_wrong
def not_reduced(given):
    """Each rank keeps its own piece: nothing is summed."""
    output, inputs = list(given.values())[:2]
    if isinstance(inputs, torch.Tensor):
        inputs = inputs.view(-1).split(output.numel())
    own = inputs[dist.get_rank(given["group"])].clone()
    yield
    output.copy_(own.view_as(output))


@_wrong
def input_returned(given):
    """What was to be sent is what arrives."""
    yield
    pairs = list(given.values())[:2]
    if isinstance(pairs[0], torch.Tensor):
        pairs = [[one] for one in pairs]
    for output, input in zip(*pairs, strict=True):
        output.view(-1)[: input.numel()].copy_(input.reshape(-1)[: output.numel()])


@_wrong
def buffer_untouched(given):
    """The message arrives, but not in the buffer that was given."""
    given["tensor"] = given["tensor"].clone()
    yield


@_wrong
def message_zeroed(given):
    """A message is sent, but not the one that was given."""
    given["tensor"] = torch.zeros_like(given["tensor"])
    yield


# What is wrong -> (the function of torch.distributed, how to make it wrong).
WRONG: dict[str, tuple[str, Callable]] = {
    "all_reduce that does nothing": ("all_reduce", noop),
    "all_reduce that sums whatever is asked": ("all_reduce", always_sum),
    "all_reduce that loses the last rank": ("all_reduce", last_rank_lost),
    "reduce that does nothing": ("reduce", noop),
    "reduce that ignores its root": ("reduce", root_ignored),
    "reduce that loses the last rank": ("reduce", last_rank_lost),
    "broadcast that does nothing": ("broadcast", noop),
    "broadcast that ignores its root": ("broadcast", root_ignored),
    "broadcast_object_list that does nothing": ("broadcast_object_list", noop),
    "all_gather that permutes": ("all_gather", all_gather_permutes),
    "all_gather_single that permutes": (
        "all_gather_single",
        all_gather_single_permutes,
    ),
    "all_gather_object that permutes": ("all_gather_object", _permutes("object_list")),
    "gather that permutes": ("gather", gather_permutes),
    "gather_object that permutes": ("gather_object", _permutes("object_gather_list")),
    "scatter that permutes": ("scatter", scatter_permutes),
    "reduce_scatter that does not reduce": ("reduce_scatter", not_reduced),
    "reduce_scatter_single that does not reduce": ("reduce_scatter_single", not_reduced),
    "all_to_all that returns its input": ("all_to_all", input_returned),
    "all_to_all_single that returns its input": ("all_to_all_single", input_returned),
    "barrier that does nothing": ("barrier", noop),
    "monitored_barrier that does nothing": ("monitored_barrier", noop),
    "new_group that is the whole world": ("new_group", group_ignored),
    "recv that leaves the buffer": ("recv", buffer_untouched),
    "send of another message": ("send", message_zeroed),
    "irecv that leaves the buffer": ("irecv", buffer_untouched),
    "isend of another message": ("isend", message_zeroed),
    "batch_isend_irecv that does nothing": (
        "batch_isend_irecv",
        lambda real: lambda operations: [],
    ),
}


def send_also(extra: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """In a rank: for each tensor that is sent, extra(tensor) is sent, too, and received.

    All results stay right. Only who counts what is sent can notice it.
    """
    send, recv, batch = dist.send, dist.recv, dist.batch_isend_irecv

    def send_both(tensor, peer):
        send(tensor, peer)
        send(extra(tensor), peer)

    def recv_both(tensor, peer):
        recv(tensor, peer)
        recv(extra(tensor), peer)

    def batch_both(operations):
        more = [dist.P2POp(one.op, extra(one.tensor), one.peer) for one in operations]
        return batch(operations) + batch(more)

    dist.send, dist.recv, dist.batch_isend_irecv = send_both, recv_both, batch_both


SENT_TOO_MUCH = {
    "every message twice": torch.clone,
    "4,000 bytes more with each message": lambda tensor: torch.zeros(4000, dtype=torch.uint8),
}
