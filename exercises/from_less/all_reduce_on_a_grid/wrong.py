"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("    dist.all_reduce(piece, group=columns[column])\n", "", ALL_WRONG),
    (
        "    dist.reduce_scatter_tensor(piece, x, group=rows[row])\n    dist.all_reduce(piece, group=columns[column])\n"
        "    dist.all_gather_into_tensor(x, piece, group=rows[row])\n",
        "    dist.all_reduce(x, group=rows[row])\n    dist.all_reduce(x, group=columns[column])\n",
        "every rank: it gave 64 bytes to all_reduce; 16 are enough.",
    ),
]
