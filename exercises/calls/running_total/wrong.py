"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("total += before", "total = before", "rank 1: the result is wrong."),
    ("rank < n - 1", "rank < n", "it sends to rank 2: the last rank is 1"),
    ("dist.send(total", "dist.send(x", "The last right case: 2 ranks, run 2."),
    ("total = x.clone()", "total = x", "`x` was changed"),
]
