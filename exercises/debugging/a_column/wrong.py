"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "without `matrix[:, 0] = column`": {
        "kind": "the example",
        "change": ("    matrix[:, 0] = column\n", ""),
        "says": "rank 1: `matrix` is as it was: ",
    },
    "`matrix.copy_(column[:, None])` for `matrix[:, 0] = column`": {
        "kind": "the example",
        "change": ("matrix[:, 0] = column", "matrix.copy_(column[:, None])"),
        "says": "every rank: the result is wrong.",
    },
    "the root is always 0": {
        "kind": "another root",
        "change": ("src=root", "src=0"),
        "says": "`matrix` is as it was",
    },
}
