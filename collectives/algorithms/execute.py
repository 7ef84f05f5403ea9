"""Execute a schedule: the interpreter that really moves and adds.

`links` is anything that can send and receive between two ranks (see `links.Links`).
"""

import torch

from collectives.algorithms.links import Links
from collectives.algorithms.reductions import Combine
from collectives.algorithms.schedule import NOBODY, Pieces, Schedule, numbers, steps
from collectives.algorithms.tensors import copy, in_blocks, joined


def execute(
    schedule: Schedule,
    links: Links,
    pieces: list[torch.Tensor],
    combine: Combine | None,
) -> None:
    """Take all steps of this rank. `pieces` are flat tensors, in the order of their numbers.

    `combine(a, b, out=tensor)` adds, like torch.add.
    """
    # Memory for what arrives, made once: fresh memory costs more than the sum of it.
    scratch = pieces[0].new_empty(0)
    for step in steps(schedule):
        to, source = int(step.to), int(step.source)
        sent = _select(pieces, step.send) if to != NOBODY else []
        received = _select(pieces, step.receive) if source != NOBODY else []
        outgoing = _joined(sent)
        # subtle: into the pieces themselves only if nothing is added, and none of them leaves in
        # the same step.
        is_plain = not step.reduce and len(received) == 1 and not _overlap(sent, received)
        size = sum(piece.numel() for piece in received)
        if not is_plain and scratch.numel() < size:
            scratch = scratch.new_empty(size)
        incoming = received[0] if is_plain else scratch[:size]
        if to == source == links.rank:
            copy(incoming, outgoing)
        else:
            _move(links, to, outgoing, source, incoming)
        if not is_plain:
            _put(incoming, received, combine if step.reduce else None, source < links.rank)


def _move(
    links: Links, to: int, outgoing: torch.Tensor, source: int, incoming: torch.Tensor
) -> None:
    # Both sides know the sizes: a message without bytes is not sent.
    if outgoing.numel() and incoming.numel():
        links.exchange(to, outgoing, source, incoming)
    elif outgoing.numel():
        links.send(to, outgoing)
    elif incoming.numel():
        links.receive(source, incoming)


def _put(
    arrived: torch.Tensor, places: list[torch.Tensor], combine: Combine | None, theirs_first: bool
) -> None:
    """Put the pieces that arrived together in their places, or add them to what is there."""
    alone = len(places) == 1  # then there is nothing to split, which takes longer than to add
    parts = (arrived,) if alone else arrived.split([x.numel() for x in places])
    for place, part in zip(places, parts, strict=True):
        if combine is None:
            copy(place, part)
        elif theirs_first:
            in_blocks(lambda own, theirs: combine(theirs, own, out=own), place, part)
        else:
            in_blocks(lambda own, theirs: combine(own, theirs, out=own), place, part)


def _select(pieces: list[torch.Tensor], which: Pieces) -> list[torch.Tensor]:
    """The pieces of a message. Those that are neighbours in memory become one."""
    found: list[torch.Tensor] = []
    for piece in (pieces[number] for number in numbers(which, len(pieces))):
        if found and _are_neighbours(found[-1], piece):
            found[-1] = found[-1].as_strided((found[-1].numel() + piece.numel(),), (1,))
        elif piece.numel():
            found.append(piece)
    return found


def _are_neighbours(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        left.data_ptr() + left.nbytes == right.data_ptr()
        and left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
    )


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    if not tensors:
        return torch.empty(0)
    return tensors[0] if len(tensors) == 1 else joined(tensors)


def _overlap(sent: list[torch.Tensor], received: list[torch.Tensor]) -> bool:
    return any(
        a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes
        for a in sent
        for b in received
    )
