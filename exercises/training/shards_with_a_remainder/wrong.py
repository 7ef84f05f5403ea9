"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`rank` for `min(rank, longer)`": {
        "kind": "the example",
        "change": ("min(rank, longer)", "rank"),
        "says": "rank 1: the result is wrong.",
    },
    "without `+ (rank < longer)`": {
        "kind": "another length",
        "change": (" + (rank < longer)", ""),
        "says": "the result is wrong. The last right case: 2 ranks, 2 samples.",
    },
    "the last rank takes the rest": {
        "kind": "more than two ranks",
        "change": (
            "    first = rank * short + min(rank, longer)\n    return list(range(first, first + short + (rank < longer)))",
            "    first = rank * short\n    return list(range(first, samples if rank == n - 1 else first + short))",
        ),
        "says": "the result is wrong.",
    },
    "chunks of one length": {
        "kind": "more than two ranks",
        "around": """\
def my_shard(samples, rank, n):
    each = -(-samples // n)
    return list(range(samples))[rank * each : (rank + 1) * each]
""",
        "says": "the result is wrong.",
    },
}
