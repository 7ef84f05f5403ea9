"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (" * n + rank", "", "rank 0: the result is wrong."),
    (", op=dist.ReduceOp.MAX", "", "rank 0: the result is wrong."),
]
