"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`rank - 1,` for `(rank - 1) % n,`": {
        "kind": "the example",
        "change": ("(rank - 1) % n, ", "rank - 1, "),
        "says": "rank 0: the result is wrong.",
    },
    "`rank + 1` for `(rank + 1) % n`": {
        "kind": "the example",
        "change": ("(rank + 1) % n", "rank + 1"),
        "says": "rank 1: the result is wrong.",
    },
    "the left neighbour is the other one": {
        "kind": "more than two ranks",
        "change": ("(rank - 1) % n, ", "(rank + 1) % n, "),
        "says": "the result is wrong.",
    },
    "it counts with bits": {
        "kind": "a number of ranks that is no power of two",
        "change": ("(rank + 1) % n", "(rank + 1) & (n - 1)"),
        "says": "the result is wrong.",
    },
}
