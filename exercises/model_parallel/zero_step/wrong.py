"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "without `dist.all_gather_single(weights, mine)`": {
        "kind": "the example",
        "change": ("    dist.all_gather_single(weights, mine)\n", ""),
        "says": "`weights` is as it was: ",
    },
    "`gradient` for `gradient / n`": {
        "kind": "the example",
        "change": ("gradient / n", "gradient"),
        "says": "every rank: `weights` is wrong.",
    },
    "`momentum = momentum / 2 + mean` for `momentum.copy_(momentum / 2 + mean)`": {
        "kind": "the example",
        "change": ("momentum.copy_(momentum / 2 + mean)", "momentum = momentum / 2 + mean"),
        "says": "every rank: `momentum` is as it was: ",
    },
    "`gradient.div_(n)` for `gradient / n`": {
        "kind": "the example",
        "change": ("gradient / n", "gradient.div_(n)"),
        "says": "`gradient` was changed",
    },
    "it keeps the first momentum": {
        "kind": "a second call",
        "around": """\
KEPT = []


def step(weights, gradient, momentum):
    KEPT.append(momentum.clone())
    if len(KEPT) > 1:
        momentum.copy_(KEPT[0][: len(momentum)])
    right(weights, gradient, momentum)
""",
        "says": "`weights` is wrong.",
    },
    "the mean of two": {
        "kind": "more than two ranks",
        "change": ("gradient / n", "gradient / 2"),
        "says": "`weights` is wrong.",
    },
    "whole numbers": {
        "kind": "fractions",
        "change": ("momentum / 2 + mean", "(momentum / 2 + mean).floor()"),
        "says": "`weights` is wrong.",
    },
}
