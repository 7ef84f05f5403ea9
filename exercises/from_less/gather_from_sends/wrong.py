"""What learners really write: changes of the solution, and what they must be told."""

TO_ITSELF = "itself, which a rank cannot do"

WRONG = [
    ("x.clone() for", "x for", "`x` was changed"),
    ("        dist.send(x, dst)", "        dist.send(x, 0)", TO_ITSELF),
    ("rank != me", "rank > me", "The last right case: 2 ranks, dst 0, 1000"),
]
