"""Exercises that write one collective from lesser calls."""

from collections.abc import Iterator
from typing import Any

import torch

from collectives.course.practice.checks.data import added, elements, moved, poison
from collectives.course.practice.exercise import MESSAGES, Case, exercise, hints


def _runs() -> Iterator[tuple[int, int, str]]:
    """The calls: number, length and label. Two calls of one length follow each other: a message
    that the first leaves behind spoils the second.
    """
    for call, length in enumerate((2, 2, 1, 0, 1000)):
        yield call, length, f"{elements(length)}, run {call + 1}"


def _at_each_root(n: int, name: str) -> Iterator[tuple[int, int, int, str]]:
    for root in range(n):
        for call, length, label in _runs():
            yield root, call, length, f"{name} {root}, {label}"


def _broadcast(rank: int, n: int, messages: int | None = None) -> Iterator[Case]:
    for root, call, length, label in _at_each_root(n, "src"):
        x = moved(root, length, call) if rank == root else poison(length)
        yield Case(label, (x, root), after={0: moved(root, length, call)}, messages=messages)


@exercise("broadcast", stars=1, lesson="broadcast", uses=MESSAGES)
@hints(
    "The root sends to every other rank; every other rank receives once.",
    "The root must not send to itself: gloo refuses that.",
)
def broadcast_from_sends(rank: int, n: int) -> Iterator[Case]:
    yield from _broadcast(rank, n)


@exercise("broadcast", stars=3, lesson="broadcast", uses=MESSAGES)
@hints(
    "Count ranks from the root: `place = (rank - src) % n`. The root has place 0.",
    "With distance 1, 2, 4, ... each place below the distance sends to place + distance.",
    "A place receives in exactly one round, and only sends in later rounds.",
)
def broadcast_as_a_tree(rank: int, n: int) -> Iterator[Case]:
    yield from _broadcast(rank, n, messages=(n - 1).bit_length())


@exercise("scatter", stars=1, lesson="scatter", uses=MESSAGES)
@hints(
    "The root sends piece r to rank r, and copies its own piece.",
    "All ranks but the root have no pieces: they only receive.",
)
def scatter_from_sends(rank: int, n: int) -> Iterator[Case]:
    for root, call, length, label in _at_each_root(n, "src"):
        pieces = [moved(r, length, call) for r in range(n)] if rank == root else None
        yield Case(label, (poison(length), pieces, root), after={0: moved(rank, length, call)})


@exercise("gather", stars=1, lesson="gather", uses=MESSAGES)
@hints(
    "The root receives once from every other rank, each time from a rank that it names.",
    "A receive without a source takes whatever comes first: the order of ranks is lost.",
)
def gather_from_sends(rank: int, n: int) -> Iterator[Case]:
    for root, call, length, label in _at_each_root(n, "dst"):
        wanted = [moved(r, length, call) for r in range(n)] if rank == root else []
        yield Case(label, (moved(rank, length, call), root), wanted)


@exercise("reduce", stars=1, lesson="reduce", uses=MESSAGES)
@hints(
    "The root receives from every other rank, and adds what came.",
    "Add into a new tensor: `x` must stay as it was.",
)
def reduce_on_any_root(rank: int, n: int) -> Iterator[Case]:
    for root, call, length, label in _at_each_root(n, "dst"):
        parts = [added(r, length, call) for r in range(n)]
        wanted = torch.stack(parts).sum(0) if rank == root else parts[rank]
        yield Case(label, (parts[rank], root), wanted)


@exercise("ring_all_gather", stars=2, lesson="all_gather", uses=MESSAGES)
@hints(
    "In each of n - 1 rounds a rank sends the piece that it got last to its right neighbour.",
    "In round k rank r sends the piece of rank (r - k) % n, and gets that of (r - k - 1) % n.",
)
def all_gather_as_a_ring(rank: int, n: int) -> Iterator[Case]:
    for call, length, label in _runs():
        yield Case(
            label,
            (moved(rank, length, call),),
            torch.cat([moved(r, length, call) for r in range(n)]),
            messages=n - 1,
            bytes=(n - 1) * length * 8,
        )


def _all_reduce(rank: int, n: int, **limits: Any) -> Iterator[Case]:
    # It is cut into n pieces: the telling lengths first.
    for call, length in enumerate(dict.fromkeys((n, 2 * n, n + 1, n - 1, 1, 0, 1000))):
        parts = [added(r, length, call) for r in range(n)]
        yield Case(
            f"{elements(length)}, run {call + 1}",
            (parts[rank],),
            after={0: torch.stack(parts).sum(0)},
            **limits,
        )


@exercise("all_reduce", stars=1, lesson="all_reduce", uses=("reduce", "broadcast"))
@hints("After `reduce` one rank has the sum. Which call gives it to all?")
def all_reduce_from_two_calls(rank: int, n: int) -> Iterator[Case]:
    yield from _all_reduce(rank, n)


@exercise("reduce_scatter", stars=2, lesson="reduce_scatter", uses=("reduce",))
@hints(
    "Each rank is the root once, and gets the sum of the pieces for it.",
    "`reduce` may write into its tensor on every rank, not only on the root: give it a copy.",
)
def reduce_scatter_from_reduces(rank: int, n: int) -> Iterator[Case]:
    for call, length, label in _runs():
        by_rank = [list(added(r, n * length, call).view(n, length)) for r in range(n)]
        total = torch.stack([pieces[rank] for pieces in by_rank]).sum(0)
        yield Case(label, (poison(length), by_rank[rank]), after={0: total})


@exercise(
    "all_reduce",
    stars=2,
    lesson="reduce_scatter",
    uses=("reduce_scatter", "reduce_scatter_tensor", "all_gather", "all_gather_into_tensor"),
)
@hints(
    "First each rank gets the sum of one piece, then all ranks get all pieces.",
    "The length may not be a multiple of n: pad with zeros, and cut them off at the end.",
)
def all_reduce_from_its_halves(rank: int, n: int) -> Iterator[Case]:
    yield from _all_reduce(rank, n)


@exercise("all_reduce", stars=3, lesson="isend_irecv", uses=MESSAGES)
@hints(
    "Cut the tensor into n pieces with `tensor_split`: they may have different lengths.",
    "First n - 1 rounds that add: afterwards each rank has the sum of one piece.",
    "Then n - 1 rounds that copy the finished pieces around the ring.",
)
def all_reduce_as_a_ring(rank: int, n: int) -> Iterator[Case]:
    for case in _all_reduce(rank, n, messages=2 * (n - 1)):
        case.bytes = 2 * (n - 1) * -(-len(case.args[0]) // n) * 8
        yield case


@exercise("all_to_all", stars=2, lesson="all_to_all", uses=MESSAGES)
@hints(
    "In round k send to rank + k and receive from rank - k, both modulo n.",
    "Round 0 is a copy of your own piece.",
)
def all_to_all_pairwise(rank: int, n: int) -> Iterator[Case]:
    for call, length, label in _runs():
        pieces = [moved(rank, n * length, call)[r * length : (r + 1) * length] for r in range(n)]
        wanted = [moved(r, n * length, call)[rank * length : (rank + 1) * length] for r in range(n)]
        yield Case(label, (pieces,), wanted, messages=n - 1)


@exercise("exclusive_scan", stars=2, lesson="send_recv", uses=MESSAGES)
@hints(
    "Rank r wants the sum of the ranks below it; rank 0 wants zeros.",
    "Send what you received plus your own tensor; return what you received.",
)
def a_scan(rank: int, n: int) -> Iterator[Case]:
    for call, length, label in _runs():
        parts = [added(r, length, call) for r in range(n)]
        below = torch.stack([torch.zeros_like(parts[0]), *parts[:rank]]).sum(0)
        yield Case(label, (parts[rank],), below, messages=1)


@exercise(
    "sum_of_my_row",
    stars=2,
    lesson="new_group",
    uses=("all_reduce", "new_group", "new_subgroups_by_enumeration"),
    sizes=(4, 2, 8),
)
@hints(
    "Every rank makes every group, in the same order, also those that it is no member of.",
    "Row i of a grid with `width` columns has the ranks i * width to (i + 1) * width - 1.",
)
def sub_groups(rank: int, n: int) -> Iterator[Case]:
    for call, width in enumerate((2, n)):
        parts = [added(r, 2, call) for r in range(n)]
        row = rank // width
        total = torch.stack(parts[row * width : (row + 1) * width]).sum(0)
        yield Case(f"rows of {width} ranks", (parts[rank], width), total)


@exercise("broadcast", stars=1, lesson="broadcast", uses=("all_reduce",))
@hints(
    "What must the other ranks contribute, so that the sum is the root's tensor?",
    "They set their tensor to 0 first.",
)
def broadcast_from_all_reduce(rank: int, n: int) -> Iterator[Case]:
    for case in _broadcast(rank, n):
        case.calls = 1
        yield case


@exercise("all_gather", stars=1, lesson="all_gather", uses=("broadcast",))
@hints(
    "Each rank is the root once.",
    "Copy your own tensor into its place first, then broadcast each place from its rank.",
)
def all_gather_from_broadcasts(rank: int, n: int) -> Iterator[Case]:
    for call, length, label in _runs():
        pieces = [poison(length) for _ in range(n)]
        yield Case(
            label,
            (pieces, moved(rank, length, call)),
            after={0: [moved(r, length, call) for r in range(n)]},
        )


@exercise("all_to_all", stars=1, lesson="all_to_all", uses=("scatter",))
@hints("Each rank is the root once: then it has a list, and all others have None.")
def all_to_all_from_scatter(rank: int, n: int) -> Iterator[Case]:
    for call, length, label in _runs():
        sent = [moved(rank, n * length, call)[r * length : (r + 1) * length] for r in range(n)]
        wanted = [moved(r, n * length, call)[rank * length : (rank + 1) * length] for r in range(n)]
        received = [poison(length) for _ in range(n)]
        yield Case(label, (received, sent), after={0: wanted})


@exercise("slowest", stars=2, lesson="reduce", uses=("reduce",))
@hints(
    "One number has to carry both, the time and the rank; the time decides.",
    "`milliseconds * n + rank`, reduced with MAX. `divmod` takes it apart.",
)
def slowest_rank(rank: int, n: int) -> Iterator[Case]:
    for late in range(n):
        times = [30 if r == late else 10 + r for r in range(n)]
        wanted = (30, late) if rank == 0 else (0, 0)
        yield Case(f"rank {late} is the slowest", (times[rank],), wanted, calls=1)


@exercise("median_of_all", stars=2, lesson="gather", uses=("gather",))
@hints(
    "The median at a position needs the values of all ranks at that position, and no others.",
    "Gather one part of `size` elements after the other: `x.split(size)`.",
)
def median_in_parts(rank: int, n: int) -> Iterator[Case]:
    for size, length in ((2, 5), (1, 3), (10, 4)):
        rows = torch.stack([(torch.arange(length) * 7 + 3 * r) % 11 for r in range(n)])
        wanted = rows.median(dim=0).values if rank == 0 else torch.tensor([], dtype=torch.int64)
        yield Case(f"{elements(length)}, {size} at a time", (rows[rank], size), wanted)


@exercise("on_all_ranks", stars=2, lesson="scatter", uses=("scatter", "gather"))
@hints(
    "Scatter one number to each rank, square it there, and gather the squares.",
    "Only the root passes lists; the others pass None.",
)
def squares_on_all_ranks(rank: int, n: int) -> Iterator[Case]:
    for root in range(n):
        numbers = torch.arange(1.0, n + 1) + root
        is_root = rank == root
        wanted = numbers.square() if is_root else torch.tensor([])
        yield Case(f"root {root}", (numbers if is_root else None, root), wanted)


@exercise(
    "hierarchical_all_reduce",
    stars=3,
    lesson="new_group",
    uses=(
        *("reduce_scatter_tensor", "all_reduce", "all_gather_into_tensor", "new_group"),
        "new_subgroups_by_enumeration",
    ),
    sizes=(4, 2, 8),
)
@hints(
    "Three calls: along the row, along the column, along the row again.",
    "After a reduce_scatter in the row each rank holds a piece of the row's sum.",
    "All_reduce that piece in the column, then all_gather the pieces in the row.",
)
def all_reduce_on_a_grid(rank: int, n: int) -> Iterator[Case]:
    for call, width in enumerate((2, 2)):
        parts = [added(r, 2 * width, call) for r in range(n)]
        total = torch.stack(parts).sum(0)
        yield Case(
            f"rows of {width} ranks", (parts[rank], width), after={0: total}, calls=3, reduced=16
        )


@exercise("barrier", stars=2, lesson="barrier", uses=MESSAGES)
@hints(
    "In round k (distance 1, 2, 4, ...) send to rank + distance, receive from rank - distance.",
    "Pass on all marks that you have. `torch.maximum` joins them with those that came.",
)
def barrier_by_dissemination(rank: int, n: int) -> Iterator[Case]:
    for call in range(3):
        marks = torch.zeros(n)
        marks[rank] = 1.0
        messages = (n - 1).bit_length()
        yield Case(f"run {call + 1}", (marks,), after={0: torch.ones(n)}, messages=messages)
