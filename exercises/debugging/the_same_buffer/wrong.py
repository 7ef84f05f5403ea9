"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("range(tensors)", "range(tensors - 1)", "rank 1: the result is wrong."),
    (
        "    for tensor in received:\n        dist.recv(tensor, 0)\n",
        "    for tensor in received[:2]:\n        dist.recv(tensor, 0)\n",
        "rank 1: the result is wrong.",
    ),
]
