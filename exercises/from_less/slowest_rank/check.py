"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.exercise import Case, exercise, hints


@exercise("slowest", stars=2, lesson="reduce", uses=("reduce",))
@hints(
    "One number has to carry both, the time and the rank; the time decides.",
    "`milliseconds * n + rank`, reduced with MAX. `divmod` takes it apart.",
)
def cases(rank: int, n: int) -> Iterator[Case]:
    for late in range(n):
        times = [30 if r == late else 10 + r for r in range(n)]
        wanted = (30, late) if rank == 0 else (0, 0)
        yield Case(f"rank {late} is the slowest", (times[rank],), wanted, calls=1)
