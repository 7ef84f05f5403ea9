"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "        weight.copy_(piece.view_as(weight))\n",
        "        weight = piece\n",
        "rank 1: `weights` is as it was: ",
    ),
    ("src=trainer", "src=0", "2 ranks, trainer 1: rank 0: `weights` is as it was: "),
]
