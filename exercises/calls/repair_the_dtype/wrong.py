"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("src=root", "src=0", "the result is wrong. The last right case: 2 ranks, root 0."),
    ("(x, src=root)", "(x.long(), src=root)", "rank 1: the result is wrong."),
]
