"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("        x.zero_()\n", "        pass\n", ALL_WRONG),
    ("!= src", "!= 0", "the result is wrong. The last right case: 2 ranks, src 0, 1000"),
]
