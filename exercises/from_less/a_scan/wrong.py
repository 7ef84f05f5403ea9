"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import in_float32, keeps_the_first

WRONG = {
    "`x` for `below + x`": {
        "kind": "more than two ranks",
        "change": ("below + x", "x"),
        "says": "the result is wrong. The last right case: 2 ranks, the last rank has inf and 1e17.",
    },
    "`return below + x` for `return below`": {
        "kind": "the example",
        "change": ("return below", "return below + x"),
        "says": "every rank: the result is wrong.",
    },
    "it keeps the first result": keeps_the_first("exclusive_scan(x)", says="run 2"),
    "it computes in float32": in_float32("exclusive_scan(x)"),
    "only rank 1 receives": {
        "kind": "more than two ranks",
        "change": ("rank > 0", "rank == 1"),
        "says": "the result is wrong.",
    },
}
