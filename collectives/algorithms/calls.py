"""The collectives of torch.distributed, each executed by an algorithm of the table.

They block until the call is done on this rank. Tensors must be contiguous and on the CPU, else they
raise ValueError before any message. `op` may be a Reduction that was looked up before.

>>> def total(rank, world_size, device):
...     x = torch.tensor([10.0**rank, 1.0])
...     all_reduce(GroupLinks(dist.group.WORLD), x, dist.ReduceOp.SUM, "ring")
...     return x.tolist()
>>> launch(total, 2)
[[11.0, 2.0], [11.0, 2.0]]
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from collectives.algorithms import table
from collectives.algorithms.execute import execute
from collectives.algorithms.links import Links
from collectives.algorithms.reductions import Combine, Reduction, reduction
from collectives.algorithms.schedule import Step, among, numbers, steps
from collectives.algorithms.tensors import check_layout, copy, flat, joined


def all_reduce(
    links: Links,
    tensor: Tensor,
    op: ReduceOp | Reduction,
    algorithm: str,
    per_node: int | None = None,
) -> None:
    """`per_node` ranks share a machine: for the algorithm "hierarchical". All, if left out."""
    flat = _flat("all_reduce", tensor)
    how = reduction(op, tensor.dtype)
    how.before(flat)
    pieces = _cut("all_reduce", links, flat, algorithm, per_node)
    _execute("all_reduce", links, pieces, algorithm, how.combine, per_node=per_node)
    how.after(flat, links.size)


def reduce(
    links: Links, tensor: Tensor, root: int, op: ReduceOp | Reduction, algorithm: str
) -> None:
    """Only the root's tensor changes."""
    flat = _flat("reduce", tensor)
    how = reduction(op, tensor.dtype)
    # subtle: partial sums pass through the other ranks, and must not be left in their tensors.
    work = flat if links.rank == root else joined([flat])
    how.before(work)
    pieces = _cut("reduce", links, work, algorithm)
    _execute("reduce", links, pieces, algorithm, how.combine, root)
    if links.rank == root:
        how.after(flat, links.size)


def broadcast(links: Links, tensor: Tensor, root: int, algorithm: str) -> None:
    pieces = _cut("broadcast", links, _flat("broadcast", tensor), algorithm)
    _execute("broadcast", links, pieces, algorithm, root=root)


def all_gather(links: Links, outputs: Sequence[Tensor], own: Tensor, algorithm: str) -> None:
    """`outputs[r]` becomes rank r's `own`. They may have different sizes."""
    pieces = [_flat("all_gather", tensor) for tensor in outputs]
    copy(pieces[links.rank], _flat("all_gather", own))
    _execute("all_gather", links, pieces, algorithm)


def gather(
    links: Links, outputs: Sequence[Tensor] | None, own: Tensor, root: int, algorithm: str
) -> None:
    """On the root, `outputs[r]` becomes rank r's `own`."""
    flat = _flat("gather", own)
    pieces = _rooted_pieces("gather", links, outputs, flat, root, algorithm)
    copy(pieces[(links.rank - root) % links.size], flat)
    _execute("gather", links, pieces, algorithm, root=root)


def scatter(
    links: Links, output: Tensor, inputs: Sequence[Tensor] | None, root: int, algorithm: str
) -> None:
    """`output` becomes the root's `inputs[rank]`."""
    flat = _flat("scatter", output)
    pieces = _rooted_pieces("scatter", links, inputs, flat, root, algorithm)
    _execute("scatter", links, pieces, algorithm, root=root)
    copy(flat, pieces[(links.rank - root) % links.size])


def reduce_scatter(
    links: Links,
    output: Tensor,
    inputs: Sequence[Tensor],
    op: ReduceOp | Reduction,
    algorithm: str,
) -> None:
    """`output` becomes the reduction of all ranks' `inputs[rank]`. The inputs do not change."""
    flat = _flat("reduce_scatter", output)
    how = reduction(op, output.dtype)
    parts = [_flat("reduce_scatter", tensor) for tensor in inputs]
    work = joined(parts)
    how.before(work)
    pieces = list(work.split([part.numel() for part in parts]))
    _execute("reduce_scatter", links, pieces, algorithm, how.combine)
    copy(flat, pieces[links.rank])
    how.after(flat, links.size)


def all_to_all(
    links: Links, outputs: Sequence[Tensor], inputs: Sequence[Tensor], algorithm: str
) -> None:
    """`outputs[r]` becomes rank r's `inputs[rank]`."""
    pieces = [_flat("all_to_all", tensor) for tensor in (*inputs, *outputs)]
    _check_even("all_to_all", links, algorithm, pieces)
    _execute("all_to_all", links, pieces, algorithm)


def barrier(links: Links, algorithm: str) -> None:
    """Return after every rank has called it."""
    _execute("barrier", links, [torch.zeros(1, dtype=torch.uint8)], algorithm)


def _cut(
    collective: str, links: Links, flat: Tensor, algorithm: str, per_node: int | None = None
) -> list[Tensor]:
    """One tensor in as many pieces as the algorithm wants."""
    chosen = table.find(collective, algorithm, links.size)
    count = chosen.pieces(links.size, flat.nbytes, per_node or links.size)
    return list(flat.tensor_split(count))


def _execute(
    collective: str,
    links: Links,
    pieces: list[Tensor],
    algorithm: str,
    combine: Combine | None = None,
    root: int = 0,
    per_node: int | None = None,
) -> None:
    chosen = table.find(collective, algorithm, links.size)
    per_node = per_node or links.size
    plan = _steps(chosen, links.rank, links.size, len(pieces), root, per_node)
    execute(plan, links, pieces, combine)


@functools.lru_cache(maxsize=256)
def _steps(
    chosen: table.Algorithm, rank: int, n: int, pieces: int, root: int, per_node: int
) -> list[Step]:
    """The steps of one rank, as integers. A program repeats the same calls again and again."""
    # In the schedule the root is rank 0, and the others are counted from it on.
    schedule = chosen.steps((rank - root) % n, n, pieces, per_node)
    renamed = among(schedule, lambda peer: (peer + root) % n)
    return [
        Step(
            int(step.to),
            int(step.source),
            list(numbers(step.send, pieces)),
            list(numbers(step.receive, pieces)),
            step.reduce,
        )
        for step in steps(renamed)
    ]


def _flat(what: str, tensor: Tensor) -> Tensor:
    check_layout(what, tensor)
    return flat(tensor)


def _rooted_pieces(
    what: str,
    links: Links,
    pieces: Sequence[Tensor] | None,
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
