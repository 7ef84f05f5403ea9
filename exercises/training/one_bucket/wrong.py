"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "        gradient.copy_(piece.view_as(gradient))",
        "        gradient = piece",
        "every rank: `gradients` is as it was: ",
    ),
    (
        "    dist.all_reduce(bucket)\n",
        "    for part in bucket.split(1):\n        dist.all_reduce(part)\n",
        "it made 6 calls; 1 is enough",
    ),
]
