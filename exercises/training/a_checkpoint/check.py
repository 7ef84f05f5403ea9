"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Which attributes does `step` read?",
    "A generator has a state, too: `get_state()` and `set_state(...)`.",
    "Weights, momentum, the generator's state and the number of steps.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for steps, stop in ((5, 3), (5, 0), (5, 5)):
        seeds = [10 * stop + r + 1 for r in range(n)]
        yield ExerciseCase(
            f"a stop after {stop} of {steps} steps",
            (seeds[rank], steps, stop),
            _trained(seeds, steps),
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
