"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("dst=root", "dst=0", "raised ValueError: Argument ``gather_list`` must"),
    ("dist.gather(x.square()", "dist.gather(x", "rank 0: the result is wrong."),
]
