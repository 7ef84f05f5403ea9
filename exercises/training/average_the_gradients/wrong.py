"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    (
        "        gradient /= dist.get_world_size()\n",
        "",
        "every rank: `gradients` is 2 times too large, as the sum",
    ),
    ("for gradient in gradients", "for gradient in gradients[:-1]", ALL_WRONG),
]
