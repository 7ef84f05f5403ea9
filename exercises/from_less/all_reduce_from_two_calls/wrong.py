"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from all_reduces import WRONG_ALL_REDUCES

WRONG = {
    "without `dist.broadcast(x, src=0)`": {
        "kind": "the example",
        "change": ("    dist.broadcast(x, src=0)\n", ""),
        "says": "rank 1: `x` is as it was: ",
    },
    "`dist.all_reduce(x)` for `dist.reduce(x, dst=0)`": {
        "kind": "the example",
        "change": ("dist.reduce(x, dst=0)", "dist.all_reduce(x)"),
        "says": "it calls dist.all_reduce: write `all_reduce` with reduce,",
    },
    "the root is the last rank, but only of two": {
        "kind": "more than two ranks",
        "change": ("src=0", "src=dist.get_world_size() // 2 - 1"),
        "says": "the result is wrong.",
    },
    "the largest": {
        "kind": "negative numbers",
        "change": ("dist.reduce(x, dst=0)", "dist.reduce(x.clamp_(min=0), dst=0)"),
        "says": "the result is wrong.",
    },
} | WRONG_ALL_REDUCES
