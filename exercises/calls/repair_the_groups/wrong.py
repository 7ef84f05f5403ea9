"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "range(dist.get_world_size() - 1)",
        "reversed(range(dist.get_world_size() - 1))",
        "rank 1: the result is wrong.",
    ),
    (", group=pair", "", "3 ranks, run 1"),
]
