"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("(rank - 1) % n, ", "rank - 1, ", "rank 0: the result is wrong."),
    ("(rank + 1) % n", "rank + 1", "rank 1: the result is wrong."),
]
