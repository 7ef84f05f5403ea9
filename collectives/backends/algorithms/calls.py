"""The collectives of torch.distributed, each executed by an algorithm of the table.

They block until the call is done on this rank. Tensors must be contiguous and on the CPU, else they
raise ValueError before any message. `tag` belongs to the call: it must be the same on all ranks.
"""

import functools

import torch

from collectives.backends.algorithms import table
from collectives.backends.algorithms.blocks import copy, joined
from collectives.backends.algorithms.execute import execute
from collectives.backends.algorithms.reductions import Reduction, reduction
from collectives.backends.algorithms.schedule import Run, Step, among, steps


def all_reduce(links, tensor, op, algorithm: str, tag: int = 0, per_node: int | None = None):
    """`per_node` ranks share a machine: for the algorithm "hierarchical". All, if left out."""
    flat = _flat("all_reduce", tensor)
    how = reduction(op, tensor.dtype)
    how.before(flat)
    _in_pieces("all_reduce", links, flat, how, algorithm, tag, per_node=per_node)
    how.after(flat, links.size)


def reduce(links, tensor, root: int, op, algorithm: str, tag: int = 0):
    """Only the root's tensor changes."""
    flat = _flat("reduce", tensor)
    how = reduction(op, tensor.dtype)
    # subtle: partial sums pass through the other ranks, and must not be left in their tensors.
    work = flat if links.rank == root else joined([flat])
    how.before(work)
    _in_pieces("reduce", links, work, how, algorithm, tag, root)
    if links.rank == root:
        how.after(flat, links.size)


def broadcast(links, tensor, root: int, algorithm: str, tag: int = 0):
    flat = _flat("broadcast", tensor)
    _in_pieces("broadcast", links, flat, None, algorithm, tag, root)


def all_gather(links, outputs: list, own, algorithm: str, tag: int = 0):
    """`outputs[r]` becomes rank r's `own`. They may have different sizes."""
    pieces = [_flat("all_gather", tensor) for tensor in outputs]
    _place(pieces[links.rank], _flat("all_gather", own))
    execute(_plan("all_gather", links, algorithm, links.size), links, pieces, None, tag)


def gather(links, outputs: list | None, own, root: int, algorithm: str, tag: int = 0):
    """On the root, `outputs[r]` becomes rank r's `own`."""
    flat = _flat("gather", own)
    pieces = _rooted_pieces("gather", links, outputs, flat, root, algorithm)
    _place(pieces[(links.rank - root) % links.size], flat)
    execute(_plan("gather", links, algorithm, links.size, root), links, pieces, None, tag)


def scatter(links, output, inputs: list | None, root: int, algorithm: str, tag: int = 0):
    """`output` becomes the root's `inputs[rank]`."""
    flat = _flat("scatter", output)
    pieces = _rooted_pieces("scatter", links, inputs, flat, root, algorithm)
    execute(_plan("scatter", links, algorithm, links.size, root), links, pieces, None, tag)
    _place(flat, pieces[(links.rank - root) % links.size])


def reduce_scatter(links, output, inputs: list, op, algorithm: str, tag: int = 0):
    """`output` becomes the reduction of all ranks' `inputs[rank]`. The inputs do not change."""
    flat = _flat("reduce_scatter", output)
    how = reduction(op, output.dtype)
    parts = [_flat("reduce_scatter", tensor) for tensor in inputs]
    work = joined(parts)
    how.before(work)
    pieces = list(work.split([part.numel() for part in parts]))
    execute(_plan("reduce_scatter", links, algorithm, links.size), links, pieces, how.combine, tag)
    _place(flat, pieces[links.rank])
    how.after(flat, links.size)


def all_to_all(links, outputs: list, inputs: list, algorithm: str, tag: int = 0):
    """`outputs[r]` becomes rank r's `inputs[rank]`."""
    pieces = [_flat("all_to_all", tensor) for tensor in (*inputs, *outputs)]
    _check_even("all_to_all", links, algorithm, pieces)
    execute(_plan("all_to_all", links, algorithm, links.size), links, pieces, None, tag)


def barrier(links, algorithm: str, tag: int = 0):
    """Return after every rank has called it."""
    word = torch.zeros(1, dtype=torch.uint8)
    execute(_plan("barrier", links, algorithm, 1), links, [word], None, tag)


def _in_pieces(
    collective: str,
    links,
    flat: torch.Tensor,
    how: Reduction | None,
    algorithm: str,
    tag: int,
    root: int = 0,
    per_node: int | None = None,
) -> None:
    """Cut one tensor in as many pieces as the algorithm wants, and execute it."""
    per_node = per_node or links.size
    chosen = table.find(collective, algorithm, links.size)
    count = chosen.pieces(links.size, flat.nbytes, per_node)
    plan = _plan(collective, links, algorithm, count, root, per_node)
    execute(plan, links, list(flat.tensor_split(count)), how.combine if how else None, tag)


def _plan(
    collective: str, links, algorithm: str, pieces: int, root: int = 0, per_node: int = 1
) -> list[Step]:
    return _steps(collective, algorithm, links.rank, links.size, pieces, root, per_node)


@functools.lru_cache(maxsize=256)
def _steps(
    collective: str, name: str, rank: int, n: int, pieces: int, root: int, per_node: int
) -> list[Step]:
    """The steps of one rank, as integers. A program repeats the same calls again and again."""
    chosen = table.find(collective, name, n)
    # In the schedule the root is rank 0, and the others are counted from it on.
    schedule = chosen.steps((rank - root) % n, n, pieces, per_node)
    renamed = among(schedule, lambda peer: (peer + root) % n)
    return [_plain(step) for step in steps(renamed)]


def _plain(step: Step) -> Step:
    return Step(
        int(step.to), int(step.source), _numbers(step.send), _numbers(step.receive), step.reduce
    )


def _numbers(which) -> int | Run | list:
    if isinstance(which, Run):
        return Run(int(which.start), int(which.count))
    return [int(one) for one in which] if isinstance(which, list) else int(which)


def _flat(what: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one row of elements, in the same memory."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(
            f"{what} takes dense tensors on the CPU, this one is {tensor.layout} on "
            f"{tensor.device}."
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"{what} takes contiguous tensors, this one has strides {tensor.stride()}: "
            "use contiguous()."
        )
    return tensor.detach().view(-1)


def _rooted_pieces(
    what: str, links, pieces: list | None, own: torch.Tensor, root: int, algorithm: str
) -> list[torch.Tensor]:
    """The root's pieces, from its own on, or room for the pieces that pass through this rank."""
    if links.rank == root:
        flat = [_flat(what, tensor) for tensor in pieces]
        _check_even(what, links, algorithm, flat)
        return flat[root:] + flat[:root]
    return list(own.new_empty(links.size * own.numel()).tensor_split(links.size))


def _check_even(what: str, links, algorithm: str, pieces: list[torch.Tensor]) -> None:
    sizes = {piece.numel() for piece in pieces}
    if len(sizes) > 1 and not table.find(what, algorithm, links.size).uneven:
        others = [name for name, one in table.ALGORITHMS[what].items() if one.uneven]
        raise ValueError(
            f"{what}: {algorithm} needs pieces of one size, these have {sorted(sizes)} elements: "
            f"take {' or '.join(others)}."
        )


def _place(place: torch.Tensor, piece: torch.Tensor) -> None:
    """Copy a piece to its place, unless it is there already."""
    if place.data_ptr() != piece.data_ptr():
        copy(place, piece)
