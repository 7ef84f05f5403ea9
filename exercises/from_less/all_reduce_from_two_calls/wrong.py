"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

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
    "it adds and sends in float32": {
        "kind": "numbers too large for float32",
        "around": """\
def all_reduce(x):
    short = x.float()
    right(short)
    x.copy_(short)
""",
        "says": "the result is wrong.",
    },
    "it sends whole numbers": {
        "kind": "fractions",
        "around": """\
def all_reduce(x):
    whole = x.nan_to_num().long()
    right(whole)
    x.copy_(whole)
""",
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = {}


def all_reduce(x):
    if 0 not in KEPT:
        right(x)
        KEPT[0] = x.clone()
    x.copy_(KEPT[0][: len(x)])
""",
        "says": "raised RuntimeError: The size of tensor a",
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
}
