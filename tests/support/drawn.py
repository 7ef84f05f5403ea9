"""One figure of each kind, and more of those that can become crowded. Run: prints their hashes."""

import functools
import hashlib
import json
from dataclasses import replace

import torch
from hand_made import program

from collectives import Curve, SchedulePlayback, StepLog, Times
from collectives.course import chapters, files
from collectives.pictures import illustration, picture, timeline, waiting
from collectives.pictures.cables import Cables, Wiring
from collectives.pictures.data_panels import CallPanel
from collectives.pictures.memory_bars import MemoryBars
from collectives.pictures.origin import ExpectedCall, trace
from collectives.recording.call import Call
from collectives.recording.counts import Count, Counts
from collectives.semantics.calls import CALLS
from tools import overview

# The pictures of one chapter lie beside its lessons.
with files.imports_from(chapters.folder() / "algorithms"):
    from shared_rows import SharedRows
    from trees import Trees
with files.imports_from(chapters.folder() / "machines"):
    from connections import Connections
    from slow_pairs import SlowPairs
    from weights_in_use import WeightsInUse
with files.imports_from(chapters.folder() / "model_parallel"):
    from origins import Origins, Part
    from pipeline_slots import PipelineOrders, PipelineSlots
    from slices import Slice, Slices
    from token_routes import TokenRoutes
    from travelling_blocks import Round, TravellingBlocks
    from whole_layers import WholeLayers
with files.imports_from(chapters.folder() / "training"):
    from bucket_order import BucketOrder
    from rank_grid import RankGrid, dealt

SUM = [torch.tensor([10**rank, 2 * 10**rank]) for rank in range(4)]
# Every state of a cell occurs in one of these.
PICTURES = {
    "broadcast": {"before": SUM, "after": [SUM[1]] * 4, "root": 1, "in_place": True},
    "all_reduce": {"before": SUM, "after": [sum(SUM)] * 4, "op": "SUM", "in_place": True},
    "all_gather": {"before": SUM, "after": [SUM] * 4},
    "wrong": {
        "before": SUM[:2],
        "after": [torch.tensor([1, 1, -1]), [torch.tensor([20]), "x", {}]],
    },
    "repeated": {"before": [torch.ones(2)] * 3, "after": [torch.ones(2)] * 3, "in_place": True},
    "without one rank": {"before": SUM, "after": [sum(SUM[1:])] * 4, "op": "SUM", "in_place": True},
    "padded": {
        "before": [(short := torch.tensor([1, -1])), (long := torch.tensor([11, 12]))],
        "after": [[short, long]] * 2,
        "expected": ExpectedCall(CALLS["all_gather"]),
        "padding": -1,
    },
    "eight": {
        "before": [torch.tensor([rank])[None] for rank in range(8)],
        "after": [torch.arange(8)] * 8,
    },
}
OVERVIEW = ["broadcast", "all_reduce", "repeated", "without one rank"]
RING = [
    "isend:1 irecv:2 wait:1 wait:0",
    "isend:2 irecv:0 wait:1 wait:0",
    "isend:0 irecv:1 wait:1 wait:0",
]
_LONG_RING = [
    " ".join([f"isend:{(r + 1) % 4} irecv:{(r + 3) % 4} wait:{{}} wait:{{}}"] * 4) for r in range(4)
]
_IN_A_ROW = ["recv:any2 recv:any1 barrier recv:any1", "send:0 barrier send:0", "send:0 barrier"]
TIMELINES = {
    "ring": RING,
    "chain": ["send:1", "recv:0 send:2", "recv:1"],
    "from any in a row": _IN_A_ROW,
    "to and from a root": ["broadcast:1 reduce:1"] * 3,
    "the last one to come": ["barrier new_group", "isend:0 isend:0 barrier"],
    "what went wrong": ["send:1!", "recv:0..."],
    "a late receiver": ["isend:1 span:clear wait:0", "span:late recv:0"],
    "three rows": ["isend:1 " * 9 + "send:1", "barrier..."],
    "long ring": [words.format(1, 0, 5, 4, 9, 8, 13, 12) for words in _LONG_RING],
    "from any": ["recv:any1 recv:any2 recv:any3 barrier", *["send:0 barrier"] * 3],
    "object list": ["broadcast_object_list:0 reduce:3 barrier"] * 4,
    "again and again": ["broadcast:0 " * 32 + "barrier"] * 3,
    "late": ["isend:3#7 barrier barrier", *["barrier barrier"] * 2, "barrier barrier recv:0#7"],
    "groups": ["new_group new_group new_group monitored_barrier! send:1..."] * 4,
    "own work": ["isend:1 span:multiply wait:0", "irecv:0 span:multiply span:print wait:0"],
    "eight": ["broadcast_object_list:0 all_reduce reduce:7"] * 8,
}
HANGS = {
    "two send first": ["send:1...", "send:0..."],
    "a ring of receives": ["recv:2...", "recv:0...", "recv:1..."],
    "tags differ": ["send:1#1...", "recv:0#2..."],
    "one is missing": ["barrier...", "barrier...", "isend:0", "barrier..."],
    "across": ["barrier...", "barrier...", "recv:1#7...", "isend:2 barrier..."],
    "eight hang": ["barrier..."] * 7 + ["recv:0..."],
    "another call": ["broadcast:0...", "all_reduce...", "all_reduce..."],
    "both are the root": ["broadcast:0...", "broadcast:1..."],
}
# What tests/pictures/__snapshots__ has: one figure of each kind, and of each rule.
SEEN = [
    *(
        "all_reduce",
        "wrong",
        "repeated",
        "padded",
        "ring",
        "chain",
        "from any in a row",
        "to and from a root",
    ),
    *("the last one to come", "what went wrong", "a late receiver", "three rows", "groups"),
    *(*HANGS, "in two orders", "grid", "cables", "memory of GPUs", "orders", "blocks", "shards"),
    *("buckets", "shared rows", "slices", "log", "connections", "slow pairs", "trees", "curve"),
    *("again and again", "exchanged", "times", "routes", "layers", "weights in use", "origins"),
]
GRID = [(0, 1, 2), (3, 4, 5), (0, 3), (1, 4), (2, 5)]
_ONE_WAY = [(rank, (rank + 1) % 4) for rank in range(4)]
_LEADERS = [(1, 0), (4, 0), (0, 2), (2, 0), (0, 1), (0, 4)]
PANELS = [
    Wiring("in blocks", ([0, 1], [3, 2]), _ONE_WAY, 7.34),
    Wiring("round-robin", ([0, 2], [1, 3]), _ONE_WAY, 14.68),
    Wiring("leaders", ([0, 1, 4], [2, 3, 5]), _LEADERS, 4.19),
]
BARS = MemoryBars(
    {
        "one process": {"parameters": 300, "gradients": 300, "optimizer state": 600_000},
        "a rank": {"parameters": 300, "activations": 50_000},
    }
)
GPUS = MemoryBars(
    {"small": {"parameters": 70 * 10**9}, "large": {"parameters": 90 * 10**9}},
    "the fullest GPU",
    limit=80 * 10**9,
)
SLOTS = PipelineSlots.of("naive", [[("forward", 0), ("backward", 0)]] * 4)
_TWICE = [("forward", 0, 0), ("forward", 0, 1), ("backward", 0, 1), ("backward", 0, 0)]
_HALVES = [("forward", 0), ("input", 0), ("weights", 0)]
ORDERS = PipelineOrders(
    [
        PipelineSlots.of("two parts", [_TWICE] * 4, {"backward": 2}),
        PipelineSlots.of("two halves", [_HALVES] * 4, {kind: 2 for kind, _ in _HALVES}),
    ]
)
_ROUNDS = [
    [Round(0, [0, 1], [(0, 0), (1, 0), (1, 1)]), Round(1, [2, 3], [])],
    [Round(1, [2, 3], [(2, 2), (3, 2), (3, 3)]), Round(0, [0, 1], [(2, 0), (2, 1)])],
]
BLOCKS = TravellingBlocks("in order", [[0, 1], [2, 3]], _ROUNDS)
EXCHANGED = [
    Slices(
        {
            "rows": Slice((2 * rank, 0), (2, 16), (8, 16)),
            "columns": Slice((0, 4 * rank), (8, 4), (8, 16)),
        },
        ("row", "column"),
        "all_to_all_single",
    )
    for rank in range(4)
]
SLICES = [
    Slices(
        {
            "query": Slice((8 * rank, 0), (8, 32), (32, 32)),
            "down": Slice((0, 32 * rank), (32, 32), (32, 128)),
        }
    )
    for rank in range(4)
]
# Image 0 is taken twice, and image 5 by nobody; the second row is too long to be drawn in full.
SHARDS = [
    dealt(
        {
            "padded": (range(6), [rank, rank + 3] if rank < 2 else [2, 0]),
            "long": (range(1000, 1090), range(1000 + rank, 1090, 3)),
        }
    )
    for rank in range(3)
]
_GRADIENTS = [("2.bias", 0), ("2.weight", 1), ("0.bias", 1), ("0.weight", 2)]
BUCKETS = BucketOrder(
    {"two": (_GRADIENTS, [2640, 16640]), "at once": ([("weight", 0), ("bias", 2)], [8, 16])}
)
TIMES = Times(
    {"ring": [(1, 3e-3), (4096, 4e-3)], "tree": [(1, 1e-3), (4096, 9e-3)]}, "tree", "on 2 cores"
)


def draw(title: str = "", **arguments):
    """The picture of one call; `arguments` are those of `trace`."""
    return picture.draw([CallPanel(trace(**arguments), title)])


def reductions(*groups: tuple[int, ...]) -> list[Call]:
    """An all_reduce of every member, group after group."""
    return [
        Call(
            "all_reduce", f"group {group}", group, op="SUM", rank=rank, number=number, seq=0, left=1
        )
        for number, group in enumerate(groups)
        for rank in group
    ]


def in_two_orders() -> list[Call]:
    """Two collectives that the ranks start in two orders, and wait for in one."""
    starts = [
        replace(call, name="all_reduce", group=group, seq=0, is_async=True)
        for call, group in zip(program("barrier barrier", "barrier barrier"), "abba", strict=True)
    ]
    waits = [
        replace(call, name="wait", of=call.number, number=call.number + 2, is_async=False)
        for call in starts
    ]
    return starts + waits


def shared_rows(n: int = 4) -> list[SharedRows]:
    """Ranks that write their rows, add up a piece of all rows, and read row 0."""
    ranks = []
    for rank in range(n):
        calls, mine = Counts(), slice(4 * rank, 4 * rank + 4)
        rows = SharedRows(torch.zeros(n, 4 * n), calls)
        rows[rank] = torch.ones(4 * n)
        calls["c10d.barrier"] = Count(1)
        rows[0, mine] = rows[:, mine].sum(0)
        calls["c10d.barrier"] = Count(2)
        rows[0]
        ranks.append(rows)
    return ranks


def ring_of_two() -> list[StepLog]:
    """Two ranks that exchange their numbers, 1 and 10, and add them up."""
    ranks = []
    for rank in range(2):
        steps = StepLog([torch.tensor([10**rank])])
        steps.add([torch.tensor([11])], sent=0, to=1 - rank)
        ranks.append(steps)
    return ranks


CONNECTIONS = Connections(
    {},
    {"node0": ["store", "rank 0", "rank 1"], "login": ["mpiexec"], "node1": ["agent", "rank 2"]},
    {
        "starts": [("login/mpiexec", "node0/rank 0"), ("login/mpiexec", "node1/rank 2")],
        "writes": [("node0/rank 0", "node0/store"), ("node0/rank 1", "node0/store")],
        "both": [("node1/rank 2", "node0/rank 0"), ("node0/rank 0", "node1/rank 2")],
    },
)
WEIGHTS_IN_USE = WeightsInUse(
    [],
    {"spares": [1] * 8, "layer by layer": [1] * 4 + [2] * 4},
    {"spares": "answers 1", "layer by layer": "answers 16"},
    "The layers of an answer during which the weights arrive.",
)
SLOW_PAIRS = SlowPairs([], [True] * 4, [(0, 2), (1, 2), (2, 3)])
ROWS = [
    RankGrid(
        {"used": [step % 4 == rank for step in range(28)], "tokens": [rank, 12, 0, 3]},
        "step",
        "Filled: the rank used it.",
    )
    for rank in range(4)
]
ROUTES = [TokenRoutes([3, 0, 5, 2], tokens=12), TokenRoutes([1, 4, 4, 0], tokens=12)]
# Ranks 0 and 1 are trainers, and ranks 1 and 2 are engines.
ORIGINS = [
    Origins({"up": (128, 32), "down": (32, 128)}, parts)
    for parts in (
        {},
        {
            "up": [Part(0, range(64), range(32))],
            "down": [Part(rank, range(16 * rank, 16 * rank + 16), range(64)) for rank in range(2)],
        },
        {
            "up": [Part(1, range(64, 128), range(32))],
            "down": [Part(1, range(16, 32), range(64, 128))],
        },
    )
]
LAYERS = WholeLayers({"one by one": [1, 2, 3, 4], "ahead": [2, 2, 4, 4]})
TREES = Trees("double_tree", 8, number=2)


@functools.cache
def figures() -> dict:
    """By name. All are drawn on a page in inches."""
    memory = [[(piece + 1) * 10**rank for piece in range(4)] for rank in range(4)]
    shared, eight = shared_rows(), shared_rows(8)
    ranks, playback = ring_of_two(), SchedulePlayback("all_reduce", "double_tree", memory)
    found = {name: draw(**one, title=f'{name} "<1>"') for name, one in PICTURES.items()}
    found |= {name: timeline.draw(program(*one), title=name) for name, one in TIMELINES.items()}
    found |= {name: waiting.draw(program(*one), title=name) for name, one in HANGS.items()}
    (found["grid"],) = illustration.draw(reductions(*GRID, (0, 3)), "grid")
    found["in two orders"] = timeline.draw(in_two_orders(), title="in two orders")
    return found | {
        "overview": overview.draw(
            [CallPanel(trace(**PICTURES[name]), caption=name) for name in OVERVIEW]
        ),
        "cables": Cables([], PANELS).draw("cables", []),
        "memory": BARS.draw("memory", [BARS]),
        "memory of GPUs": GPUS.draw("memory", [GPUS]),
        "slots": SLOTS.draw("slots", [SLOTS] * 4),
        "orders": ORDERS.draw("orders", [ORDERS] * 4),
        "blocks": BLOCKS.draw("blocks", [BLOCKS] * 2),
        "shards": SHARDS[0].draw("shards", SHARDS),
        "buckets": BUCKETS.draw("buckets", [BUCKETS] * 3),
        "shared rows": shared[0].draw("shared_memory", shared),
        "shared rows of eight": eight[0].draw("shared_memory", eight),
        "slices": SLICES[0].draw("slices", SLICES),
        "exchanged": EXCHANGED[0].draw("exchanged", EXCHANGED),
        "log": ranks[0].draw("log", ranks),
        "playback": playback.draw("playback", [playback] * 4),
        "connections": CONNECTIONS.draw("connections", []),
        "slow pairs": SLOW_PAIRS.draw("slow pairs", []),
        "weights in use": WEIGHTS_IN_USE.draw("weights in use", []),
        "rows": ROWS[0].draw("rows", ROWS),
        "trees": TREES.draw("trees", [TREES] * 4),
        "routes": ROUTES[0].draw("routes", ROUTES),
        "layers": LAYERS.draw("layers", [LAYERS] * 2),
        "origins": ORIGINS[0].draw("origins", ORIGINS),
    }


@functools.cache
def plots() -> dict:
    """By name. These have axes with units."""
    curve = Curve({"a": [2.0, 1.0], "b": [0.5, 0.25]}, "error", log=True)
    return {
        "curve": curve.draw("curve", [curve] * 2),
        "times": TIMES.draw("times", [TIMES]),
        "changes": Times(TIMES.curves).draw("changes", []),
    }


def hashes() -> dict[str, str]:
    every = figures() | plots()
    return {name: hashlib.sha256(picture.svg(one)).hexdigest() for name, one in every.items()}


if __name__ == "__main__":
    print(json.dumps(hashes()))
