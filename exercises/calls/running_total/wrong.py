"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import in_float32, keeps_the_first

WRONG = {
    "`total = before` for `total += before`": {
        "kind": "the example",
        "change": ("total += before", "total = before"),
        "says": "rank 1: the result is wrong.",
    },
    "`rank < n` for `rank < n - 1`": {
        "kind": "the example",
        "change": ("rank < n - 1", "rank < n"),
        "says": "it sends to rank 2: the last rank is 1",
    },
    "`dist.send(x` for `dist.send(total`": {
        "kind": "more than two ranks",
        "change": ("dist.send(total", "dist.send(x"),
        "says": "the result is wrong.",
    },
    "`total = x` for `total = x.clone()`": {
        "kind": "the example",
        "change": ("total = x.clone()", "total = x"),
        "says": "`x` was changed",
    },
    "it keeps the first result": keeps_the_first("running_total(x)"),
    "it computes in float32": in_float32("running_total(x)"),
    "rank 0 sends to all": {
        "kind": "more than two ranks",
        "change": ("rank > 0", "rank == 1"),
        "says": "the result is wrong.",
    },
}
