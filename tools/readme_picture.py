"""The picture of all calls, docs/calls.svg: drawn from a run of each of them on four ranks."""

from dataclasses import replace

import torch
import torch.distributed as dist

from collectives import launch
from collectives.pictures import illustration, picture
from collectives.pictures.data_panels import CallPanel
from collectives.pictures.origin import trace
from collectives.semantics.calls import TO_ROOT
from tools import overview

_RANKS = 4


def svg() -> str:
    results = launch(_every_call, _RANKS, backend="gloo", device="cpu", record="tensors")
    panels = [_promised(panel) for _, panel in illustration.all_data(results.calls)]
    panels += [_panel(caption, results) for caption in results[0]]
    return picture.svg(overview.draw(panels)).decode()


def _promised(panel: CallPanel) -> CallPanel:
    """What a call promises: of a reduce, nothing on the other ranks."""
    origins, caption = panel.origins, panel.title
    if origins.root is not None:
        caption += f", root {origins.root}"
    if panel.title in TO_ROOT:
        rows = enumerate(origins.after)
        origins = replace(
            origins, after=tuple(row if rank == origins.root else None for rank, row in rows)
        )
    return CallPanel(origins, caption=caption)


def _panel(caption: str, results: list) -> CallPanel:
    """Of messages, and of a call in two groups, which no single record describes."""
    before, after = zip(*(result[caption] for result in results), strict=True)
    op = "SUM" if "reduce" in caption else None
    origins = trace(list(before), list(after), op=op, in_place=True)
    assert origins is not None, f"{caption} has too much to draw"
    return CallPanel(origins, caption=caption)


def _every_call(rank: int, world_size: int, device: torch.device) -> dict:
    """Make each call. Return what the pictures of all other steps need, before and after."""

    def moved() -> torch.Tensor:  # the tens name the rank
        return torch.tensor([10 * rank + 1])

    def added() -> torch.Tensor:  # each rank has its own digit
        return torch.tensor([10**rank])

    def empty() -> list[torch.Tensor]:
        return [torch.tensor([-1]) for _ in range(world_size)]

    dist.broadcast(moved(), src=1)
    dist.scatter(empty()[0], [moved() + to for to in range(4)] if rank == 1 else None, src=1)
    dist.gather(moved(), empty() if rank == 1 else None, dst=1)
    dist.all_gather(empty(), moved())
    dist.all_to_all(empty(), [moved() + to for to in range(4)])
    dist.reduce(added(), dst=1)
    dist.all_reduce(added())
    dist.reduce_scatter(empty()[0], [added() * (to + 1) for to in range(4)])

    one, ring, half = moved(), moved(), added()
    if rank == 0:
        dist.send(one, dst=3)
    elif rank == 3:
        dist.recv(one, src=0)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    exchange = [dist.P2POp(dist.isend, moved(), right), dist.P2POp(dist.irecv, ring, left)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.all_reduce(half, group=groups[rank // 2])
    return {
        "send, recv": (moved(), one),
        "isend, irecv: a ring": (moved(), ring),
        "new_group, all_reduce": (added(), half),
    }
