"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.exercise import Case, exercise, hints


@exercise("agree", stars=1, lesson="mistakes/order", uses=("all_reduce", "broadcast"))
@hints(
    "Write down the calls of rank 0 and of rank 1, one below the other.",
    "The k-th call of one rank meets the k-th call of the others: all need the same order.",
)
def cases(rank: int, n: int) -> Iterator[Case]:
    samples = [10 * (r + 1) for r in range(n)]
    yield Case("one run", (0.5 * (rank == 0), samples[rank]), (0.5, sum(samples)))
