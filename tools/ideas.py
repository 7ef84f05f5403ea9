"""The pictures that stand open under the ideas of lessons, docs/ideas/NAME.svg.

What a step draws is behind a click, because its reader is asked a question first. These pictures
show the idea alone, with other numbers than the questions have.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from collectives import SchedulePlayback
from collectives.course import chapters, files
from collectives.pictures import mesh, picture
from collectives.pictures.memory_bars import MemoryBars
from collectives.pictures.page import take_caption
from collectives.recording.call import Call

# The pictures of one chapter lie beside its lessons.
with files.imports_from(chapters.folder() / "algorithms"):
    from trees import Trees
with files.imports_from(chapters.folder() / "model_parallel"):
    from pipeline_slots import PipelineOrders, PipelineSlots
    from slices import Slice, Slices
with files.imports_from(chapters.folder() / "training"):
    from bucket_order import BucketOrder
    from rank_grid import dealt

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def svg(name: str) -> str:
    figure = IDEAS[name]()
    take_caption(figure)  # the lesson has its own words
    return picture.svg(figure).decode() + "\n"


def _ring() -> "Figure":
    memory: list[list] = [[(piece + 1) * 10**rank for piece in range(3)] for rank in range(3)]
    return SchedulePlayback("all_reduce", "ring", memory).draw("A ring of three ranks", [])


def _tree() -> "Figure":
    return Trees("binomial_tree", 6).draw("The binomial tree of six ranks", [])


def _doubling() -> "Figure":
    playback = SchedulePlayback(
        "all_reduce", "recursive_doubling", [[10**rank] for rank in range(8)]
    )
    return playback.draw("Eight ranks double what they know in each step", [])


def _pipeline() -> "Figure":
    orders = []
    for name, count in (("the whole batch", 1), ("three micro-batches", 3)):
        order = [(kind, one) for kind in ("forward", "backward") for one in range(count)]
        lengths = dict.fromkeys(("forward", "backward"), 3 // count)
        orders.append(PipelineSlots.of(name, [order] * 2, lengths))
    return PipelineOrders(orders).draw("Two ranks of a pipeline", [])


def _slices(cuts: dict[str, tuple[tuple[int, int], int]]) -> "Figure":
    """Of each matrix its shape, and the dimension along which two ranks cut it."""
    ranks = []
    for rank in range(2):
        held = {}
        for name, (whole, dim) in cuts.items():
            shape = tuple(size // 2 if at == dim else size for at, size in enumerate(whole))
            first = tuple(rank * shape[at] if at == dim else 0 for at in range(2))
            held[name] = Slice(first, shape, whole)
        ranks.append(Slices(held, ("row", "column")))
    return ranks[0].draw("Two ranks, and the weights that they cut", ranks)


def _tensor_parallel() -> "Figure":
    return _slices({"up": ((4, 16), 1), "down": ((16, 4), 0)})


def _vocabulary() -> "Figure":
    return _slices({"embedding": ((12, 6), 0), "head": ((6, 12), 1)})


def _zero() -> "Figure":
    """A model of 8 billion parameters on 8 ranks: bytes for each parameter as in the lesson."""
    stages = {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3}
    kinds = {"parameters": 4, "gradients": 4, "optimizer state": 8}
    bars = {}
    for name, stage in stages.items():
        sharded = [*kinds][len(kinds) - stage :]
        bars[name] = {
            kind: 8 * 10**9 * size // (8 if kind in sharded else 1) for kind, size in kinds.items()
        }
    return MemoryBars(bars, "each rank").draw("What each of eight ranks holds", [])


def _mesh() -> "Figure":
    groups: dict[str, mesh.Groups] = {
        "tensor": [(0, 1, 2), (3, 4, 5)],
        "data": [(0, 3), (1, 4), (2, 5)],
    }
    calls = [
        Call("all_reduce", f"{name} {group}", group, rank=rank, seq=0, left=1, group_name=name)
        for name, every in groups.items()
        for group in every
        for rank in group
    ]
    return mesh.draw(calls, (groups["tensor"], groups["data"]), "Six ranks as a mesh")


def _sampler() -> "Figure":
    ranks = [
        dealt({"shuffled": ([5, 2, 7, 0, 4, 6, 1, 3], mine)})
        for mine in ([5, 7, 4, 1], [2, 0, 6, 3])
    ]
    return ranks[0].draw("Two ranks take turns", ranks)


def _buckets() -> "Figure":
    gradients = [("layer 4", 0), ("layer 3", 1), ("layer 2", 1), ("layer 1", 2)]
    order = BucketOrder({"four layers, two buckets": (gradients, [2000, 2000])})
    return order.draw("Buckets under a backward pass", [])


IDEAS: dict[str, Callable[[], "Figure"]] = {
    "ring": _ring,
    "tree": _tree,
    "doubling": _doubling,
    "pipeline": _pipeline,
    "tensor_parallel": _tensor_parallel,
    "vocabulary": _vocabulary,
    "zero": _zero,
    "mesh": _mesh,
    "sampler": _sampler,
    "buckets": _buckets,
}
