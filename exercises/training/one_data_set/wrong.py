"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("    dist.broadcast(shared, src=0)\n", "", "rank 1: the result is wrong."),
    ("src=0", "src=dist.get_world_size() - 1", ALL_WRONG),
]
