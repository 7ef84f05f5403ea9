"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("src=root", "src=0", "`x` is as it was: "),
    ("(x, src=root)", "(x.long(), src=root)", "rank 1: `x` is as it was: "),
]
