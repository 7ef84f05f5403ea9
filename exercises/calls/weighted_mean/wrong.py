"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("sums[0] / sums[1]", "sums[0] / dist.get_world_size()", ALL_WRONG),
    (
        "dist.all_reduce(sums)",
        "dist.reduce(sums, 0)",
        "it calls dist.reduce: write `weighted_mean` with all_reduce alone.",
    ),
]
