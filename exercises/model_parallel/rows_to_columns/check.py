"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "First write a function that gives the n lengths into which `torch.chunk` cuts a length, with "
    "zeros for ranks that get nothing.",
    "This rank sends its rows times the columns of the other rank, and receives the rows of the "
    "other rank times its own columns.",
    "What goes to one rank must lie side by side: take `rows.split(widths, dim=1)`, and flatten "
    "each part.",
    "The parts arrive in the order of the ranks, which is that of the rows.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, shape in enumerate(((3, 3), (3, 3), (n + 1, 2 * n + 1), (1, 1), (40, 7))):
        whole = moved(0, shape[0] * shape[1], call).view(shape)
        rows, columns = _part(whole, rank, n, 0), _part(whole, rank, n, 1)
        unsorted = _unsorted(whole, rank, n)

        def explain(got: torch.Tensor, unsorted: torch.Tensor = unsorted) -> str | None:
            is_unsorted = torch.equal(got, unsorted)
            return "it sends rows as they lie in memory: cut them first" if is_unsorted else None

        yield ExerciseCase(
            f"{shape[0]} x {shape[1]}, run {call + 1}",
            (rows.clone(), shape),
            columns,
            bytes=rows.nbytes,
            says={"bytes": "no rank may send what the receiver does not need"},
            explain=explain,
        )


def _part(whole: torch.Tensor, rank: int, n: int, dim: int) -> torch.Tensor:
    none = whole.narrow(dim, 0, 0)
    return [*whole.chunk(n, dim), *[none] * n][rank]


def _unsorted(whole: torch.Tensor, rank: int, n: int) -> torch.Tensor:
    """The columns if every rank sends its numbers in the order in which they lie."""
    widths = [_part(whole, other, n, 1).shape[1] for other in range(n)]
    arrived = []
    for other in range(n):
        rows = _part(whole, other, n, 0)
        arrived.append(rows.flatten().split([len(rows) * width for width in widths])[rank])
    return torch.cat(arrived).view(len(whole), widths[rank])
