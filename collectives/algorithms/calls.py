"""The collectives of torch.distributed, each executed by an algorithm of the table.

They block until the call is done on this rank. Tensors must be contiguous and on the CPU, else they
raise ValueError before any message. `op` may be a Reduction that was looked up before. `tag`
belongs to the call: it must be the same on all ranks.
"""

import functools

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from collectives.algorithms import table
from collectives.algorithms.blocks import copy, joined
from collectives.algorithms.execute import execute
from collectives.algorithms.layout import check_layout, flat
from collectives.algorithms.links import Links
from collectives.algorithms.reductions import Reduction, reduction
from collectives.algorithms.schedule import Pieces, Run, Step, among, steps


def all_reduce(
    links: Links,
    tensor: Tensor,
    op: ReduceOp | Reduction,
    algorithm: str,
    tag: int = 0,
    per_node: int | None = None,
) -> None:
    """`per_node` ranks share a machine: for the algorithm "hierarchical". All, if left out."""
    flat = _flat("all_reduce", tensor)
    how = reduction(op, tensor.dtype)
    how.before(flat)
    _in_pieces("all_reduce", links, flat, how, algorithm, tag, per_node=per_node)
    how.after(flat, links.size)


def reduce(
    links: Links, tensor: Tensor, root: int, op: ReduceOp | Reduction, algorithm: str, tag: int = 0
) -> None:
    """Only the root's tensor changes."""
    flat = _flat("reduce", tensor)
    how = reduction(op, tensor.dtype)
    # subtle: partial sums pass through the other ranks, and must not be left in their tensors.
    work = flat if links.rank == root else joined([flat])
    how.before(work)
    _in_pieces("reduce", links, work, how, algorithm, tag, root)
    if links.rank == root:
        how.after(flat, links.size)


def broadcast(links: Links, tensor: Tensor, root: int, algorithm: str, tag: int = 0) -> None:
    flat = _flat("broadcast", tensor)
    _in_pieces("broadcast", links, flat, None, algorithm, tag, root)


def all_gather(
    links: Links, outputs: list[Tensor], own: Tensor, algorithm: str, tag: int = 0
) -> None:
    """`outputs[r]` becomes rank r's `own`. They may have different sizes."""
    pieces = [_flat("all_gather", tensor) for tensor in outputs]
    _place(pieces[links.rank], _flat("all_gather", own))
    execute(_plan("all_gather", links, algorithm, links.size), links, pieces, None, tag)


def gather(
    links: Links,
    outputs: list[Tensor] | None,
    own: Tensor,
    root: int,
    algorithm: str,
    tag: int = 0,
) -> None:
    """On the root, `outputs[r]` becomes rank r's `own`."""
    flat = _flat("gather", own)
    pieces = _rooted_pieces("gather", links, outputs, flat, root, algorithm)
    _place(pieces[(links.rank - root) % links.size], flat)
    execute(_plan("gather", links, algorithm, links.size, root), links, pieces, None, tag)


def scatter(
    links: Links,
    output: Tensor,
    inputs: list[Tensor] | None,
    root: int,
    algorithm: str,
    tag: int = 0,
) -> None:
    """`output` becomes the root's `inputs[rank]`."""
    flat = _flat("scatter", output)
    pieces = _rooted_pieces("scatter", links, inputs, flat, root, algorithm)
    execute(_plan("scatter", links, algorithm, links.size, root), links, pieces, None, tag)
    _place(flat, pieces[(links.rank - root) % links.size])


def reduce_scatter(
    links: Links,
    output: Tensor,
    inputs: list[Tensor],
    op: ReduceOp | Reduction,
    algorithm: str,
    tag: int = 0,
) -> None:
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


def all_to_all(
    links: Links,
    outputs: list[Tensor],
    inputs: list[Tensor],
    algorithm: str,
    tag: int = 0,
) -> None:
    """`outputs[r]` becomes rank r's `inputs[rank]`."""
    pieces = [_flat("all_to_all", tensor) for tensor in (*inputs, *outputs)]
    _check_even("all_to_all", links, algorithm, pieces)
    execute(_plan("all_to_all", links, algorithm, links.size), links, pieces, None, tag)


def barrier(links: Links, algorithm: str, tag: int = 0) -> None:
    """Return after every rank has called it."""
    word = torch.zeros(1, dtype=torch.uint8)
    execute(_plan("barrier", links, algorithm, 1), links, [word], None, tag)


def _in_pieces(
    collective: str,
    links: Links,
    flat: Tensor,
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
    plan = _steps(chosen, links.rank, links.size, count, root, per_node)
    execute(plan, links, list(flat.tensor_split(count)), how.combine if how else None, tag)


def _plan(collective: str, links: Links, algorithm: str, pieces: int, root: int = 0) -> list[Step]:
    chosen = table.find(collective, algorithm, links.size)
    return _steps(chosen, links.rank, links.size, pieces, root, 1)


@functools.lru_cache(maxsize=256)
def _steps(
    chosen: table.Algorithm, rank: int, n: int, pieces: int, root: int, per_node: int
) -> list[Step]:
    """The steps of one rank, as integers. A program repeats the same calls again and again."""
    # In the schedule the root is rank 0, and the others are counted from it on.
    schedule = chosen.steps((rank - root) % n, n, pieces, per_node)
    renamed = among(schedule, lambda peer: (peer + root) % n)
    return [_plain(step) for step in steps(renamed)]


def _plain(step: Step) -> Step:
    return Step(
        int(step.to), int(step.source), _numbers(step.send), _numbers(step.receive), step.reduce
    )


def _numbers(which: Pieces) -> Pieces:
    if isinstance(which, Run):
        return Run(int(which.start), int(which.length))
    return [int(one) for one in which] if isinstance(which, list) else int(which)


def _flat(what: str, tensor: Tensor) -> Tensor:
    check_layout(what, tensor)
    return flat(tensor)


def _rooted_pieces(
    what: str,
    links: Links,
    pieces: list[Tensor] | None,
    own: Tensor,
    root: int,
    algorithm: str,
) -> list[Tensor]:
    """The root's pieces, from its own on, or room for the pieces that pass through this rank."""
    if links.rank == root and pieces is not None:
        flat = [_flat(what, tensor) for tensor in pieces]
        _check_even(what, links, algorithm, flat)
        return flat[root:] + flat[:root]
    return list(own.new_empty(links.size * own.numel()).tensor_split(links.size))


def _check_even(what: str, links: Links, algorithm: str, pieces: list[Tensor]) -> None:
    sizes = {piece.numel() for piece in pieces}
    if len(sizes) > 1 and not table.find(what, algorithm, links.size).uneven:
        others = [name for name, one in table.ALGORITHMS[what].items() if one.uneven]
        raise ValueError(
            f"{what}: {algorithm} needs pieces of one size, these have {sorted(sizes)} elements: "
            f"take {' or '.join(others)}."
        )


def _place(place: Tensor, piece: Tensor) -> None:
    """Copy a piece to its place, unless it is there already."""
    if place.data_ptr() != piece.data_ptr():
        copy(place, piece)
