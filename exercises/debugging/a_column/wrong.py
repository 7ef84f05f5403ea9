"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("    matrix[:, 0] = column\n", "", "rank 1: `matrix` is as it was: "),
    ("matrix[:, 0] = column", "matrix.copy_(column[:, None])", ALL_WRONG),
]
