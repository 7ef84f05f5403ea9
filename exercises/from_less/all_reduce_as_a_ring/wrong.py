"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."
TO_ITSELF = "itself, which a rank cannot do"

WRONG = [
    ("2 * (n - 1)", "2 * n - 3", ALL_WRONG),
    (
        "x.tensor_split(n)",
        "x[: len(x) // n * n].tensor_split(n)",
        "every rank: the result is wrong. The last right case: 2 ranks, 4 elements,",
    ),
    ("dist.isend(mine, (rank + 1) % n)", "dist.isend(mine.clone(), (rank + 2) % n)", TO_ITSELF),
]
