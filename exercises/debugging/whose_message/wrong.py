"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "dist.recv(pieces[rank], rank)",
        "dist.recv(pieces[rank])",
        "rank 0: the result is wrong. The last right case: 2 ranks, run 3.",
    ),
    ("range(1, len(pieces))", "range(2, len(pieces))", "rank 0: the result is wrong."),
]
