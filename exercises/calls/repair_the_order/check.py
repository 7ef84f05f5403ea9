"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Write down the calls of rank 0 and of rank 1, one below the other.",
    "The k-th call of one rank meets the k-th call of the others, so all need the same order.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, rate in enumerate((0.5, 0.125, 0.0)):
        samples = [10 * (r + 1) + 2**30 * call for r in range(n)]
        own = rate if rank == 0 else call * (rank + 1.0)
        yield ExerciseCase(f"run {call + 1}", (own, samples[rank]), (rate, sum(samples)))
