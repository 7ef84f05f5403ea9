"""What learners really write: changes of the solution, and what they must be told."""

TO_ITSELF = "itself, which a rank cannot do"

WRONG = [
    ("dist.recv(x, src)", "dist.recv(x.clone(), src)", "rank 1: `x` is as it was: "),
    ("rank != src", "True", TO_ITSELF),
]
