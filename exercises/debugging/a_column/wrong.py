"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("    matrix[:, 0] = column\n", "", "rank 1: the result is wrong."),
    ("matrix[:, 0] = column", "matrix.copy_(column[:, None])", ALL_WRONG),
]
