"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("        gradient.copy_(piece.view_as(gradient))", "        gradient = piece", ALL_WRONG),
    (
        "    dist.all_reduce(bucket)\n",
        "    for part in bucket.split(1):\n        dist.all_reduce(part)\n",
        "it made 6 calls; 1 is enough",
    ),
]
