"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`gradient.norm()` for `gradient.square().sum()`": {
        "kind": "the example",
        "change": ("gradient.square().sum()", "gradient.norm()"),
        "says": "every rank: the result is wrong.",
    },
    "without `dist.all_reduce(squares)`": {
        "kind": "the example",
        "change": ("    dist.all_reduce(squares)\n", ""),
        "says": "every rank: the result is wrong.",
    },
    "one call for each gradient": {
        "kind": "what is counted",
        "change": (
            "    dist.all_reduce(squares)\n",
            "    dist.all_reduce(squares)\n    dist.all_reduce(squares.clone())\n",
        ),
        "says": "it made 2 calls; 1 is enough.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = []


def norm(gradients):
    if not KEPT:
        KEPT.append(right(gradients))
    return KEPT[0]
""",
        "says": "the result is wrong.",
    },
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def norm(gradients):
    return right([gradient.long().double() for gradient in gradients])
""",
        "says": "the result is wrong.",
    },
}
