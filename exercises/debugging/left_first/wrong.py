"""What learners really write: changes of the solution, and what they must be told."""

HANGS = "it hangs: after 2 s "

WRONG = [
    (
        "return from_left, from_right",
        "return from_right, from_left",
        "every rank: the result is wrong. The last right case: 2 ranks, run 2.",
    ),
    ("dist.isend(x, right)]", "dist.isend(x, left)]", HANGS),
]
