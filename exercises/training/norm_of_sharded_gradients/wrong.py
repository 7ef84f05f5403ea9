"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("gradient.square().sum()", "gradient.norm()", ALL_WRONG),
    ("    dist.all_reduce(squares)\n", "", ALL_WRONG),
]
