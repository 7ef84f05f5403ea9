"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from broadcasts import broadcasts

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Count ranks from the root: `place = (rank - src) % n`. The root has place 0.",
    "With distance 1, 2, 4, ... each place below the distance sends to place + distance.",
    "A place receives in exactly one round, and only sends in later rounds.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for case in broadcasts(rank, n, messages=(n - 1).bit_length()):
        if rank == case.args[1]:
            case.least_messages = n.bit_length() - 1
        case.says = {
            "messages": "no rank may send more than log2(n) messages, rounded up",
            "least_messages": "the root must send in each of these rounds",
        }
        yield case
