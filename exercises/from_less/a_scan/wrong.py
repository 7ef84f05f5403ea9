"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("below + x", "x", "the result is wrong. The last right case: 2 ranks, 1000 elements,"),
    ("return below", "return below + x", ALL_WRONG),
]
