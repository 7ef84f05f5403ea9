"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import ExerciseCase, hints

_UNEQUAL = (
    "equal plans are told unequal: values do not count, and Python's own `hash` of a text differs "
    "from rank to rank, which those of hashlib do not"
)


@hints(
    "Write name, shape and dtype of each tensor into one text, and make a hash of it.",
    "`torch.tensor(list(digest), dtype=torch.uint8)` has 32 elements on every rank.",
    "If all hashes equal that of this rank, all are equal.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    a, b = moved(rank, 6).view(2, 3), moved(rank, 3)
    plan = {"a": a, "b": b}
    others = {
        "another name": {"a": a, "c": b},
        "equal plans, other values": plan,
        "another shape": {"a": a.view(3, 2), "b": b},
        "another dtype": {"a": a, "b": b.double()},
        "a letter in the other name": {"ab": a, "": b},
        "another order": {"b": b, "a": a},
        "one tensor more": {**plan, "c": b},
        "one tensor less": {"a": a},
    }
    for call, (label, other) in enumerate(others.items()):
        different = n - 1 - call % n
        wanted = n == 1 or other is plan
        weights = other if rank == different else plan
        yield ExerciseCase(
            f"{label} on rank {different}",
            (weights,),
            wanted,
            explain=lambda got: None if got else _UNEQUAL,
            calls=1,
            says={"calls": "once in all"},
        )
