"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`total, received = x` for `total, received = x.clone()`": {
        "kind": "the example",
        "change": ("total, received = x.clone()", "total, received = x"),
        "says": "`x` was changed",
    },
    "`total = received` for `total += received`": {
        "kind": "the example",
        "change": ("total += received", "total = received"),
        "says": "rank 0: the result is wrong.",
    },
    "`rank != 0` for `rank != me`": {
        "kind": "another root",
        "change": ("rank != me", "rank != 0"),
        "says": "itself, which a rank cannot do",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = []


def reduce(x, dst):
    if not KEPT:
        KEPT.append(right(x, dst))
    return KEPT[0].clone()
""",
        "says": "the result is wrong.",
    },
    "it computes in float32": {
        "kind": "numbers too large for float32",
        "around": """\
def reduce(x, dst):
    return right(x.float(), dst).to(x.dtype)
""",
        "says": "the result is wrong.",
    },
    "it adds one other rank only": {
        "kind": "more than two ranks",
        "change": ("if rank != me", "if rank == (me + 1) % dist.get_world_size() != me"),
        "says": "the result is wrong.",
    },
    "the largest instead of the sum": {
        "kind": "data that do not rise with the rank",
        "change": ("total += received", "total += received * (received > 0)"),
        "says": "the result is wrong.",
    },
}
