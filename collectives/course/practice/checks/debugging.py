"""Programs that hang or lie: find the line, and mend it."""

from collections.abc import Iterator

import torch

from collectives.course.practice.checks.data import added, moved, poison
from collectives.course.practice.exercise import MESSAGES, Case, exercise, hints


@exercise("neighbours_values", stars=1, lesson="send_recv", uses=MESSAGES)
@hints(
    "With two ranks it works, with three it hangs: for whom does each rank wait first?",
    "Every rank begins with its left neighbour, which begins with its own left neighbour.",
    "Start both sends with `isend`, then receive.",
)
def left_first(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        wanted = (moved((rank - 1) % n, 2, call), moved((rank + 1) % n, 2, call))
        yield Case(f"run {call + 1}", (moved(rank, 2, call),), wanted)


@exercise("train", stars=1, lesson="mistakes/order", uses=("all_reduce",))
@hints(
    "Which ranks call all_reduce in the line that prints the mean?",
    "All ranks make the call; rank 0 alone uses what comes out.",
)
def only_rank_0_logs(rank: int, n: int) -> Iterator[Case]:
    losses = [[8.0 * (r + step) for step in range(3)] for r in range(n)]
    means = [sum(losses[r][step] for r in range(n)) / n for step in range(3)]
    yield Case("three steps", (losses[rank],), means if rank == 0 else [])


@exercise("train", stars=2, lesson="mistakes/order", uses=("all_reduce",))
@hints(
    "Each rank ends its loop when its own loss is small. What do the others wait for then?",
    "Decide together: the largest loss of all ranks is the same number on every rank.",
)
def early_stop(rank: int, n: int) -> Iterator[Case]:
    # Neither the sum nor the mean of the losses falls below the limit in step 4.
    losses = [[1.0, 0.5, 0.3, 0.2, 0.1]] + [[1.0, 0.2, 0.2, 0.2, 0.1]] * (n - 1)
    yield Case("rank 0 needs more steps", (losses[rank], 0.25), 4)


@exercise("send_all", stars=2, lesson="isend_irecv", uses=MESSAGES, sizes=(2, 3, 4))
@hints(
    "When may a program write into the tensor that it gave to isend?",
    "Give each message a tensor of its own, or wait before you write again.",
)
def the_same_buffer(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        texts = [moved(k, 1000, call) for k in range(3)]
        yield Case(f"run {call + 1}", (texts if rank == 0 else 3,), texts if rank < 2 else [])


@exercise("add_up", stars=2, lesson="mistakes/order", uses=("all_reduce",))
@hints(
    "In which order does each rank go through its dictionary?",
    "The k-th call of one rank meets the k-th call of the others: sort the names.",
)
def a_dictionary(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        parts = [
            {name: added(r, 2, k + call) for k, name in enumerate(("loss", "hits", "words"))}
            for r in range(n)
        ]
        names = sorted(parts[0], reverse=rank % 2 == 1)
        given = [(name, parts[rank][name]) for name in names]
        total = [(name, torch.stack([part[name] for part in parts]).sum(0)) for name in names]
        yield Case(f"run {call + 1}", (given,), total)


@exercise("collect", stars=2, lesson="send_recv", uses=MESSAGES)
@hints(
    "A receive without a source takes the first message that arrives, from any rank.",
    "Name the source, or use the rank that `recv` returns.",
)
def whose_message(rank: int, n: int) -> Iterator[Case]:
    for call in range(3):
        parts = [moved(r, 2, call) for r in range(n)]
        late = 0.02 * (n - rank)  # the last ranks send first
        yield Case(f"run {call + 1}", (parts[rank], late), parts if rank == 0 else [])


@exercise("fill_column", stars=2, lesson="mistakes/buffers", uses=("broadcast",))
@hints(
    "`contiguous()` makes a copy of a column. What becomes of the copy?",
    "Broadcast the copy, then copy it back into the column.",
)
def a_column(rank: int, n: int) -> Iterator[Case]:
    for root in range(n):
        column = moved(root, 3)
        matrix = torch.stack([moved(rank, 3) if rank == root else poison(3), poison(3)], dim=1)
        wanted = torch.stack([column, poison(3)], dim=1)
        yield Case(f"root {root}", (matrix, root), after={0: wanted})


@exercise(
    "sum_of_the_others",
    stars=3,
    lesson="new_group",
    uses=("all_reduce", "broadcast", "new_group"),
    sizes=(3, 4, 5),
)
@hints(
    "`src` is a rank of the world, also where a group is given.",
    "The first member of the group has the global rank 1.",
)
def rank_in_a_group(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        parts = [added(r, 2, call) for r in range(n)]
        wanted = torch.stack(parts[1:]).sum(0) if rank else parts[0]
        yield Case(f"run {call + 1}", (parts[rank],), wanted)
