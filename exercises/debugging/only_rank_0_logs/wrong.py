"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "        dist.all_reduce(mean)\n        if dist.get_rank() == 0:\n",
        "        if dist.get_rank() == 0:\n            dist.all_reduce(mean)\n",
        "still waits for another rank, which has ended its calls.",
    ),
    (
        "        if dist.get_rank() == 0:\n            log",
        "        log",
        "rank 1: the result is wrong.",
    ),
]
