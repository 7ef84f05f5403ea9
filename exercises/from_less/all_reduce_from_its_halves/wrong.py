"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    (
        "-(-len(x) // n) * n",
        "len(x) // n * n",
        "raised RuntimeError: The expanded size of the tensor (2) must match",
    ),
    ("    x.copy_(padded[: len(x)])\n", "", ALL_WRONG),
]
