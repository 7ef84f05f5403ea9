"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "    dist.all_reduce(of_x)\n",
        "",
        "every rank: the gradient of `x` comes from this rank's columns alone.",
    ),
    (
        "of_x, x.mT @ gradient",
        "of_x / dist.get_world_size(), x.mT @ gradient",
        "every rank: `gradient of x` is wrong.",
    ),
]
