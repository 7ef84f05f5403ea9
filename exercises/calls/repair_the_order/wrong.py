"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."
HANGS = "it hangs: after 2 s "

WRONG = [
    (
        "    dist.broadcast(shared, src=0)\n",
        "    if dist.get_rank() == 0:\n        dist.broadcast(shared, src=0)\n",
        HANGS,
    ),
    ("src=0", "src=dist.get_world_size() - 1", ALL_WRONG),
    (
        "return shared.item(), total.item()",
        "return shared, total",
        "every rank: it returned (a Tensor, a Tensor), not (a float, an int).",
    ),
]
