"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from broadcasts import WRONG_BROADCASTS

WRONG = {
    "without `x.zero_()`": {
        "kind": "the example",
        "change": ("        x.zero_()\n", "        pass\n"),
        "says": "every rank: the result is wrong.",
    },
    "`!= 0` for `!= src`": {
        "kind": "another root",
        "change": ("!= src", "!= 0"),
        "says": "`x` is as it was",
    },
    "it multiplies by 0": {
        "kind": "nan in the buffer",
        "change": ("x.zero_()", "x.mul_(0)"),
        "says": "times a number, is still nan",
    },
    "it takes the largest, and clears nothing": {
        "kind": "negative numbers",
        "change": (
            "    if dist.get_rank() != src:\n        x.zero_()\n    dist.all_reduce(x)",
            "    dist.all_reduce(x, op=dist.ReduceOp.MAX)",
        ),
        "says": "`x` is as it was",
    },
    "it takes the largest": {
        "kind": "negative numbers",
        "change": (
            "        x.zero_()\n    dist.all_reduce(x)",
            "        x.zero_()\n    dist.all_reduce(x, op=dist.ReduceOp.MAX)",
        ),
        "says": "the result is wrong.",
    },
} | WRONG_BROADCASTS
