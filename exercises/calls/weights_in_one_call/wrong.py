"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "        weight.copy_(piece.view_as(weight))\n",
        "        weight = piece\n",
        "the result is wrong.",
    ),
    ("src=trainer", "src=0", "the result is wrong. The last right case: 2 ranks, trainer 0."),
]
