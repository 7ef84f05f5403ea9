"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("src=root", "src=0", ALL_WRONG),
    ("    pieces[dist.get_rank()].copy_(x)\n", "", "every rank: `pieces` is as it was: "),
]
