"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("    dist.broadcast(x, src=0)\n", "", "rank 1: `x` is as it was: "),
    (
        "dist.reduce(x, dst=0)",
        "dist.all_reduce(x)",
        "it calls dist.all_reduce: write `all_reduce` with reduce,",
    ),
]
