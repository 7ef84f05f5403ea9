"""Exercises on data parallel training."""

from collections.abc import Iterator

import torch

from collectives.course.practice.checks.data import added, moved
from collectives.course.practice.exercise import Case, exercise, hints


def _gradients(rank: int, call: int) -> list[torch.Tensor]:
    """Of three parameters, in float64, with whole numbers: they add up without rounding."""
    return [moved(rank, length, call).double() * 8 for length in (2, 3, 1)]


def _averaged(n: int, call: int) -> list[torch.Tensor]:
    by_rank = [_gradients(rank, call) for rank in range(n)]
    return [torch.stack(same).sum(0) / n for same in zip(*by_rank, strict=True)]


@exercise("average_gradients", stars=1, lesson="training/data_parallel", uses=("all_reduce",))
@hints(
    "One all_reduce for each gradient, in the same order on all ranks.",
    "The default reduction is the sum. Divide in place, by the number of ranks.",
)
def average_the_gradients(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        yield Case(f"run {call + 1}", (_gradients(rank, call),), after={0: _averaged(n, call)})


@exercise("average_gradients", stars=2, lesson="training/buckets", uses=("all_reduce",))
@hints(
    "`torch.cat` makes one flat tensor of all gradients.",
    "`flat.split([g.numel() for g in gradients])` cuts it again: copy the pieces back.",
)
def one_bucket(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        yield Case(
            f"run {call + 1}", (_gradients(rank, call),), after={0: _averaged(n, call)}, calls=1
        )


@exercise("my_shard", stars=1, lesson="training/sampler")
@hints(
    "With 10 samples and 4 ranks the shards have 3, 3, 2 and 2 samples.",
    "`divmod(samples, n)` gives the length of a short shard, and how many are one longer.",
    "The ranks before yours hold `rank * short + min(rank, longer)` samples.",
)
def shards_with_a_remainder(rank: int, n: int) -> Iterator[Case]:
    for samples in (10, n, n - 1, 0, 1000):
        wanted = torch.arange(samples).tensor_split(n)[rank].tolist()
        yield Case(f"{samples} samples", (samples, rank, n), wanted)


@exercise("accuracy", stars=3, lesson="training/validation", uses=("all_reduce",))
@hints(
    "A sampler that pads gives some samples to two ranks: counting right answers counts them "
    "twice.",
    "Make a tensor with a place for each sample of the whole data set, and put your answers there.",
    "With MAX as the reduction, a sample that two ranks hold still counts once.",
)
def accuracy_of_padded_shards(rank: int, n: int) -> Iterator[Case]:
    for samples in (2 * n + 1, 7, 1):
        right = torch.arange(samples) % 3 != 1
        each = -(-samples // n)
        numbers = (torch.arange(each) * n + rank) % samples  # dealt like cards, and padded
        wanted = right.sum().item() / samples
        yield Case(f"{samples} samples", (right[numbers], numbers, samples), wanted)


@exercise("steps_after", stars=1, lesson="training/accumulation")
@hints(
    "`(i + 1) % every == 0` is right for all micro-batches but the last ones.",
    "After the last micro-batch there is always a step.",
)
def the_last_micro_batches(rank: int, n: int) -> Iterator[Case]:
    for number, every in ((7, 3), (6, 3), (1, 4), (5, 1), (0, 2)):
        wanted = [i for i in range(number) if (i + 1) % every == 0 or i == number - 1]
        yield Case(f"{number} micro-batches, a step after {every}", (number, every), wanted)


@exercise("sums_of_steps", stars=2, lesson="training/accumulation", uses=("all_reduce",))
@hints(
    "Add up on this rank first, over the micro-batches of a step; then over the ranks.",
    "`gradients[first : first + every]` is shorter at the end, and never reads too far.",
)
def one_call_per_step(rank: int, n: int) -> Iterator[Case]:
    for number, every in ((3, 2), (4, 2), (1, 4), (0, 2), (7, 3)):
        by_rank = [[(k + 1) * added(r, 1) for k in range(number)] for r in range(n)]
        totals = [sum(same) for same in zip(*by_rank, strict=True)]
        wanted = [
            torch.stack(totals[first : first + every]).sum(0) for first in range(0, number, every)
        ]
        yield Case(
            f"{number} micro-batches, a step after {every}",
            (by_rank[rank], every),
            wanted,
            calls=len(wanted),
        )


def _trained(seeds: list[int], steps: int) -> torch.Tensor:
    """What the Trainer of the exercise has after so many steps, computed in one process."""
    weights = momentum = torch.zeros(3, dtype=torch.float64)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    for step in range(steps):
        gradients = [torch.randint(-4, 5, (3,), generator=one).double() for one in generators]
        momentum = momentum / 2 + torch.stack(gradients).sum(0)
        weights = weights - momentum / 2**step
    return weights


@exercise("train", stars=3, lesson="training/checkpoint", uses=("all_reduce",))
@hints(
    "Which attributes does `step` read?",
    "A generator has a state, too: `get_state()` and `set_state(...)`.",
    "Weights, momentum, the generator's state and the number of steps.",
)
def a_checkpoint(rank: int, n: int) -> Iterator[Case]:
    for steps, stop in ((5, 3), (5, 0), (5, 5)):
        seeds = [10 * stop + r + 1 for r in range(n)]
        yield Case(
            f"a stop after {stop} of {steps} steps",
            (seeds[rank], steps, stop),
            _trained(seeds, steps),
        )


@exercise("draw", stars=2, lesson="training/seeds", uses=("broadcast",))
@hints(
    "All ranks must draw with the same seed: which rank's, does not matter, so take rank 0's.",
    "Broadcast the seed as a tensor of one number, then `torch.manual_seed`.",
)
def one_data_set(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        generator = torch.Generator().manual_seed(100 * call)
        wanted = torch.rand(3, generator=generator, dtype=torch.float64)
        yield Case(f"run {call + 1}", (3, 100 * call + rank), wanted)


@exercise("norm", stars=2, lesson="all_reduce", uses=("all_reduce",))
@hints(
    "The norm is the root of the sum of all squares. Roots do not add up.",
    "Add up the squares on every rank, then over the ranks, and take the root last.",
)
def norm_of_sharded_gradients(rank: int, n: int) -> Iterator[Case]:
    for call in range(2):
        whole = torch.cat([torch.cat(_gradients(r, call)) for r in range(n)])
        yield Case(f"run {call + 1}", (_gradients(rank, call),), whole.norm().item(), calls=1)


@exercise("all_equal", stars=2, lesson="weight_update", uses=("all_reduce",))
@hints(
    "If the smallest of all values equals the largest, all are equal.",
    "Reduce one copy with MIN and another with MAX.",
)
def weights_are_equal(rank: int, n: int) -> Iterator[Case]:
    for different in (None, n - 1, 0):
        weights = torch.arange(4.0) + (rank == different)
        yield Case(
            "equal weights" if different is None else f"rank {different} differs",
            (weights,),
            different is None or n == 1,
        )
