"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

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
    "it keeps the first result": keeps_the_first("norm(gradients)"),
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def norm(gradients):
    return right([gradient.long().double() for gradient in gradients])
""",
        "says": "the result is wrong.",
    },
}
