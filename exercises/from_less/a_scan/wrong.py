"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`x` for `below + x`": {
        "kind": "more than two ranks",
        "change": ("below + x", "x"),
        "says": "the result is wrong. The last right case: 2 ranks, 1000 elements,",
    },
    "`return below + x` for `return below`": {
        "kind": "the example",
        "change": ("return below", "return below + x"),
        "says": "every rank: the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = []


def exclusive_scan(x):
    if not KEPT:
        KEPT.append(right(x))
    return KEPT[0].clone()
""",
        "says": "run 2",
    },
    "it computes in float32": {
        "kind": "numbers too large for float32",
        "around": """\
def exclusive_scan(x):
    return right(x.float()).to(x.dtype)
""",
        "says": "the result is wrong.",
    },
    "only rank 1 receives": {
        "kind": "more than two ranks",
        "change": ("rank > 0", "rank == 1"),
        "says": "the result is wrong.",
    },
}
