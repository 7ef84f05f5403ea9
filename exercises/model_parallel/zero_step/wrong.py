"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("    dist.all_gather_into_tensor(weights, mine)\n", "", "`weights` is as it was: "),
    ("gradient / n", "gradient", "every rank: `weights` is wrong."),
    (
        "momentum.copy_(momentum / 2 + mean)",
        "momentum = momentum / 2 + mean",
        "every rank: `momentum` is as it was: ",
    ),
    ("gradient / n", "gradient.div_(n)", "`gradient` was changed"),
]
