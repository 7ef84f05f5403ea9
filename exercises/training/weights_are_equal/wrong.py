"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("MAX", "MIN", "the result is wrong. The last right case: 2 ranks, equal weights."),
    (
        "torch.equal(lowest, highest)",
        "torch.equal(weights, highest)",
        "rank 1: the result is wrong. The last right case: 2 ranks, equal weights.",
    ),
]
