"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("        x.zero_()\n", "        pass\n", ALL_WRONG),
    ("!= src", "!= 0", "2 ranks, src 1, 2 elements, run 1: rank 0: `x` is as it was: "),
]
