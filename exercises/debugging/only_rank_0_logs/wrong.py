"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "        dist.all_reduce(mean)\n        if dist.get_rank() == 0:\n",
        "        if dist.get_rank() == 0:\n            dist.all_reduce(mean)\n",
        "it hangs: after 2 s rank 0 still waits.",
    ),
    (
        "        if dist.get_rank() == 0:\n            log",
        "        log",
        "rank 1: the result is wrong.",
    ),
]
