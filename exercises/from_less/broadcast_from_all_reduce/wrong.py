"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

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
    "it sends float32": {
        "kind": "numbers too large for float32",
        "around": """\
def broadcast(x, src):
    short = x.float()
    right(short, src)
    x.copy_(short)
""",
        "says": "the result is wrong.",
    },
    "it sends whole numbers": {
        "kind": "fractions",
        "around": """\
def broadcast(x, src):
    whole = x.nan_to_num().long()
    right(whole, src)
    x.copy_(whole)
""",
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = {}


def broadcast(x, src):
    if src not in KEPT:
        right(x, src)
        KEPT[src] = x.clone()
    x.copy_(KEPT[src][: len(x)])
""",
        "says": "the result is wrong.",
    },
    "it keeps the larger number": {
        "kind": "negative numbers",
        "around": """\
def broadcast(x, src):
    old = x.clone()
    right(x, src)
    torch.maximum(x, old, out=x)
""",
        "says": "`x` is as it was",
    },
    "it multiplies by 0": {
        "kind": "nan in the buffer",
        "change": ("x.zero_()", "x.mul_(0)"),
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
}
