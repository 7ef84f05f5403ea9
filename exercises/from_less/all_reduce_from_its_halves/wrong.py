"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "-(-len(x) // n) * n",
        "len(x) // n * n",
        "raised RuntimeError: The expanded size of the tensor (2) must match",
    ),
    ("    x.copy_(padded[: len(x)])\n", "", "every rank: `x` is as it was: "),
]
