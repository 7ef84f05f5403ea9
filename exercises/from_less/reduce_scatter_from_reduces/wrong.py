"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("piece.clone()", "piece", "`pieces` was changed"),
    ("dst=root", "dst=0", "the result is wrong."),
]
