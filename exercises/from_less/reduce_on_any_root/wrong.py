"""What learners really write: changes of the solution, and what they must be told."""

TO_ITSELF = "itself, which a rank cannot do"

WRONG = [
    ("total, received = x.clone()", "total, received = x", "`x` was changed"),
    ("total += received", "total = received", "rank 0: the result is wrong."),
    ("rank != me", "rank != 0", TO_ITSELF),
]
