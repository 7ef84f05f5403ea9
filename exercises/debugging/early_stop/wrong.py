"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    (", op=dist.ReduceOp.MAX", "", ALL_WRONG),
    ("largest < limit", "loss < limit", "rank 1: the result is wrong."),
]
