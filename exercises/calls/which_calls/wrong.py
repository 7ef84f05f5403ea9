"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("src=dist.get_world_size() - 1", "src=0", ALL_WRONG),
    (
        "dist.reduce_scatter_tensor(c, x)",
        "total = x.clone(); dist.all_reduce(total); dist.barrier(); c = total[[dist.get_rank()]]",
        "it made 4 calls; 3 are enough",
    ),
]
