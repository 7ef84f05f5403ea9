"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("min(rank, longer)", "rank", "rank 1: the result is wrong."),
    (" + (rank < longer)", "", "the result is wrong. The last right case: 2 ranks, 2 samples."),
]
