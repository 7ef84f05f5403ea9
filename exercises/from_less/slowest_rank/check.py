"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "One number has to carry both, the time and the rank, and the time must decide.",
    "`milliseconds * n + rank`, reduced with MAX. `divmod` takes it apart.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for late in range(n):
        for slow, quick in ((30, 10), (20_000_001, 20_000_000 - n)):
            times = [slow if r == late else quick + r for r in range(n)]
            wanted = (slow, late) if rank == 0 else (0, 0)
            yield ExerciseCase(
                f"rank {late} takes {slow} ms",
                (times[rank],),
                wanted,
                calls=1,
                bytes=8,
                says={"calls": "one call of reduce", "bytes": "with one number"},
            )
