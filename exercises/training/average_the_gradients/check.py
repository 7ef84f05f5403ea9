"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from gradients import averaged, gradients

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "One all_reduce for each gradient, in the same order on all ranks.",
    "all_reduce gives the sum by default, so divide, in place, by the number of ranks.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        yield ExerciseCase(
            f"run {call + 1}", (gradients(rank, call),), after={0: averaged(n, call)}
        )
