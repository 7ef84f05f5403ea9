"""Exercises on single calls and on messages between two ranks."""

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from collectives.course.practice.checks.data import added, elements, moved, poison
from collectives.course.practice.exercise import MESSAGES, Case, exercise, hints
from collectives.course.practice.process_group import SENT


@exercise("neighbours", stars=1, lesson="send_recv", uses=MESSAGES)
@hints(
    "The rank after the last one is rank 0. Which operator of Python turns n into 0?",
    "`(rank + 1) % n` is the rank to the right. `%` also works for rank 0's left side.",
)
def neighbours(rank: int, n: int) -> Iterator[Case]:
    yield Case("one run", (rank, n), ((rank - 1) % n, (rank + 1) % n))


@exercise("shift", stars=1, lesson="isend_irecv", uses=MESSAGES)
@hints(
    "If every rank calls `send` first, every rank waits for a receive that nobody starts.",
    "Start the send with `isend`, then receive, then wait for the send.",
    "With one rank there is nobody to send to: return a copy.",
)
def shift_right(rank: int, n: int) -> Iterator[Case]:
    for call, length in enumerate((2, 2, 1, 0, 1000)):
        left = moved((rank - 1) % n, length, call)
        yield Case(
            f"{elements(length)}, run {call + 1}", (moved(rank, length, call),), left, messages=1
        )


@exercise("exchange", stars=1, lesson="send_recv", uses=MESSAGES, sizes=(2, 4, 8))
@hints(
    "Two ranks that both call `send` first wait for each other.",
    "Let the smaller rank send first, and the other receive first; or use `isend`.",
)
def exchange_in_pairs(rank: int, n: int) -> Iterator[Case]:
    for call, distance in enumerate((1, n // 2, n // 2)):
        peer = rank ^ distance
        yield Case(
            f"rank 0 with rank {distance}, run {call + 1}",
            (moved(rank, 2, call), peer),
            moved(peer, 2, call),
            messages=1,
        )


@exercise("running_total", stars=2, lesson="send_recv", uses=MESSAGES)
@hints(
    "Rank 0 only sends, the last rank only receives, all others do both.",
    "Receive first, add your own tensor, then send the sum to the next rank.",
)
def running_total(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        parts = [moved(r, 2, call) for r in range(n)]
        total = torch.stack(parts[: rank + 1]).sum(0)
        yield Case(f"run {call + 1}", (parts[rank],), total, messages=1)


@exercise("weighted_mean", stars=1, lesson="all_reduce", uses=("all_reduce",))
@hints(
    "The mean of the ranks' means is wrong if the ranks hold different amounts.",
    "Two sums are needed: that of the values, and that of how many there are.",
    "Put both into one tensor of two elements: one call is enough.",
)
def weighted_mean(rank: int, n: int) -> Iterator[Case]:
    for call, lengths in enumerate(([r + 1 for r in range(n)], [2 * (r % 2) for r in range(n)])):
        if sum(lengths):
            parts = [moved(r, length, call).double() for r, length in enumerate(lengths)]
            yield Case(
                f"rank 0 has {elements(lengths[0])}", (parts[rank],), torch.cat(parts).mean()
            )


@exercise("accuracy", stars=2, lesson="all_reduce", uses=("all_reduce",))
@hints(
    "Count the right predictions and all predictions, add up both, then divide.",
    "A rank without any prediction takes part in the call all the same.",
)
def accuracy_over_unequal_shards(rank: int, n: int) -> Iterator[Case]:
    for call, lengths in enumerate(([r + 1 for r in range(n)], list(range(n)))):
        if sum(lengths):
            labels = [moved(r, length) for r, length in enumerate(lengths)]
            given = [label + (label % (2 + call) == 0) for label in labels]
            right = torch.cat(labels) == torch.cat(given)
            yield Case(
                f"rank 0 has {elements(lengths[0])}",
                (given[rank], labels[rank]),
                right.double().mean().item(),
            )


@exercise(
    "gather_texts",
    stars=2,
    lesson="all_gather",
    uses=("all_gather", "all_gather_into_tensor", "all_reduce"),
)
@hints(
    "`torch.frombuffer(bytearray(text, 'utf-8'), dtype=torch.uint8)` makes a tensor of bytes.",
    "All tensors of an all_gather have one length: gather the lengths first, then pad.",
    "Cut each row to its own length before `bytes(row.tolist()).decode()`.",
)
def texts_as_padded_bytes(rank: int, n: int) -> Iterator[Case]:
    for call, stem in enumerate(("abc", "äöü", "")):
        texts = [f"{stem}{'!' * (r + bool(stem))}" for r in range(n)]
        yield Case(f"run {call + 1}", (texts[rank],), texts)


@exercise("fill_from_root", stars=1, lesson="broadcast", uses=("broadcast",))
@hints(
    "`dist.broadcast(x.long(), src=0)` fills a copy, and the copy is lost.",
    "Broadcast a tensor of the type that the root has, then copy it into `x`.",
)
def repair_the_dtype(rank: int, n: int) -> Iterator[Case]:
    for root in range(n):
        x = moved(root, 3, root).double() if rank == root else poison(3).double()
        yield Case(f"root {root}", (x, root), after={0: moved(root, 3, root).double()})


@exercise("agree", stars=1, lesson="mistakes/order", uses=("all_reduce", "broadcast"))
@hints(
    "Write down the calls of rank 0 and of rank 1, one below the other.",
    "The k-th call of one rank meets the k-th call of the others: all need the same order.",
)
def repair_the_order(rank: int, n: int) -> Iterator[Case]:
    samples = [10 * (r + 1) for r in range(n)]
    yield Case("one run", (0.5 * (rank == 0), samples[rank]), (0.5, sum(samples)))


@exercise("results", stars=2, lesson="reduce_scatter")
@hints(
    "`a` is one rank's tensor on all ranks; which rank's?",
    "`b` on rank 0 has the first element of every rank: each rank has something for each.",
    "`c` on rank 0 is the sum of `b` on rank 0, and one call makes it from `x`.",
)
def which_calls(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        rows = torch.stack([moved(r, n, call) for r in range(n)])
        wanted = (rows[-1], rows[:, rank], rows[:, rank].sum(0, keepdim=True))
        yield Case(f"run {call + 1}", (rows[rank].clone(),), wanted, calls=3)


@exercise(
    "sums_of_pairs",
    stars=2,
    lesson="new_group",
    uses=("all_reduce", "new_group"),
    sizes=(3, 2, 4, 1),
)
@hints(
    "How often does rank 0 call new_group, and how often rank 1?",
    "Every rank makes every group, in the same order, also those that it is no member of.",
    "Only the two members call all_reduce.",
)
def repair_the_groups(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        parts = [added(r, 2, call) for r in range(n)]
        wanted = [parts[left] + parts[left + 1] for left in range(n - 1) if rank - left in (0, 1)]
        yield Case(f"run {call + 1}", (parts[rank],), wanted)


class _Backward:
    """Gives one gradient after another. Rank 1 has its first when rank 0 asks for its second."""

    def __init__(self, gradients: list[torch.Tensor], rank: int, n: int, call: int):
        self.gradients, self.waits, self.tells = gradients, rank == 1, rank == 0 and n > 1
        self.key = f"backward {call}"

    def __repr__(self) -> str:
        return ", ".join(str(gradient.tolist()) for gradient in self.gradients)

    def __iter__(self) -> Iterator[torch.Tensor]:
        store = dist.distributed_c10d._get_default_store()
        for number, gradient in enumerate(self.gradients):
            if SENT.calls < number:
                started = f"it starts the all_reduce of tensor {number}"
                SENT.refuse(f"it asks for tensor {number + 1} before {started}")
            if self.tells and number == 1:
                store.set(self.key, "")
            if self.waits and number == 0:
                store.wait([self.key])
            yield gradient.clone()


@exercise("overlapped", stars=2, lesson="all_reduce", uses=("all_reduce",))
@hints(
    "`async_op=True` makes all_reduce return at once, with a `Work`.",
    "Keep the tensor and its `Work`, and go on to the next tensor.",
    "Wait for each `Work` after the loop, before anybody reads the sums.",
)
def overlap(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        by_rank = [[(k + 1) * added(r, 2, call) for k in range(3)] for r in range(n)]
        sums = [torch.stack(same).sum(0) for same in zip(*by_rank, strict=True)]
        yield Case(f"run {call + 1}", (_Backward(by_rank[rank], rank, n, call),), sums)


@exercise("update", stars=2, lesson="weight_update", uses=("broadcast",))
@hints(
    "`torch.cat` makes one flat tensor of all weights, on the other ranks, too.",
    "`flat.split([w.numel() for w in weights])` cuts it again: copy the pieces back.",
)
def weights_in_one_call(rank: int, n: int) -> Iterator[Case]:
    for trainer in range(n):
        new = [moved(trainer, 2), moved(trainer, 6, 1).view(2, 3), moved(trainer, 1, 2)]
        weights = [one.clone() if rank == trainer else torch.full_like(one, -7) for one in new]
        yield Case(f"trainer {trainer}", (weights, trainer), after={0: new}, calls=1)


class _Speak:
    """The last rank is the quickest: without barriers it is the first to speak."""

    def __init__(self, rank: int, n: int, call: int):
        self.seconds, self.key = 0.02 * (n - rank), f"spoken {call}"

    def __repr__(self) -> str:
        return "speak"

    def __call__(self) -> int:
        time.sleep(self.seconds)
        return dist.distributed_c10d._get_default_store().add(self.key, 1)


@exercise("in_turn", stars=2, lesson="barrier", uses=("barrier",), sizes=(2, 3, 4, 1))
@hints(
    "How can rank 1 know that rank 0 has spoken, if it may only call barrier?",
    "n barriers: between two of them one rank speaks. Every rank calls all of them.",
)
def one_after_another(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        yield Case(f"run {call + 1}", (_Speak(rank, n, call),), rank + 1)
