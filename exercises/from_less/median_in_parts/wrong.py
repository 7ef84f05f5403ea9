"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("x.split(size)", "x.split(size)[:1]", "rank 0: the result is wrong."),
    (".values", ".indices", "rank 0: the result is wrong."),
]
