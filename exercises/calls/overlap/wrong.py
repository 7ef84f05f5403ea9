"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "works.append(dist.all_reduce(gradient, async_op=True))",
        "dist.all_reduce(gradient)",
        "it waits for its first sum before it asks for the second tensor: nothing overlaps",
    ),
    (
        "sums.append(gradient)",
        "sums.append(gradient.clone())",
        "the result is wrong.",  # on a rank that copied before the sum was there
    ),
    (
        "    for work in works:\n        work.wait()\n",
        "    works[-1].wait()\n",
        "every rank: it does not wait for its all_reduce",
    ),
    (
        "for gradient in gradients",
        "for gradient in list(gradients)",
        "it asks for tensor 2 before it starts the all_reduce of tensor 1",
    ),
]
