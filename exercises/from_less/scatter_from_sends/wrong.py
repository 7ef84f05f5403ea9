"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "output.copy_(piece)",
        "output.copy_(pieces[0])",
        "rank 1: the result is wrong. The last right case: 2 ranks, src 0, 1000",
    ),
    ("output.copy_(piece)", "pass", "rank 0: `output` is as it was: "),
]
