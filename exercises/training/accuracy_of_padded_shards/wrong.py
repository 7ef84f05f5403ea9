"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("counted.sum().item() / samples", "right.float().mean().item()", ALL_WRONG),
    ("op=dist.ReduceOp.MAX", "op=dist.ReduceOp.SUM", ALL_WRONG),
]
