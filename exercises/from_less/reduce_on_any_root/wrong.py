"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import in_float32, keeps_the_first

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
    "it keeps the first result": keeps_the_first("reduce(x, dst)"),
    "it computes in float32": in_float32("reduce(x, dst)"),
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
