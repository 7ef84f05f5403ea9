"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from all_reduces import all_reduces

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Cut the tensor into n pieces with `tensor_split`: they may have different lengths.",
    "In the first n - 1 rounds you add, so that each rank ends with the sum of one piece.",
    "In the other n - 1 rounds you copy the finished pieces around the ring.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for case in all_reduces(rank, n, messages=2 * (n - 1), least_messages=2 * (n - 1)):
        case.peers = [(rank + 1) % n]
        case.says = {
            **dict.fromkeys(("messages", "least_messages"), "each rank sends 2 (n - 1) messages"),
            "peers": "all to its right neighbour",
            "bytes": "no message is longer than the longest of the n pieces of `x`",
        }
        case.bytes = 2 * (n - 1) * -(-len(case.args[0]) // n) * 8
        yield case
