"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`n - rank` for `n - 1 - rank`": {
        "kind": "the example",
        "change": ("n - 1 - rank", "n - rank"),
        "says": "rank 0: after F2 it keeps 3 micro-batches; the most is 2.",
    },
    "`rank` for `n - 1 - rank`": {
        "kind": "the example",
        "change": ("n - 1 - rank", "rank"),
        "says": "rank 0: it never keeps 2 micro-batches at a time, and waits",
    },
    "`n - 1 - rank` for `min(m, n - 1 - rank)`": {
        "kind": "more than two ranks",
        "change": ("min(m, n - 1 - rank)", "n - 1 - rank"),
        "says": "3 ranks, 1 micro-batch: rank 0: there is no pass 'F1': the last ones are F0 and B0.",
    },
    "`range(m - ahead):` for `range(m):`": {
        "kind": "the example",
        "change": ("range(m):", "range(m - ahead):"),
        "says": "rank 0: B3 is missing.",
    },
    '`f"B{m - 1 - i}"` for `f"B{i}"`': {
        "kind": "the example",
        "change": ('f"B{i}"', 'f"B{m - 1 - i}"'),
        "says": "every rank: B3 comes before F3.",
    },
    '`f"F{i}"` for `f"F{ahead + i}"`': {
        "kind": "the example",
        "change": ('f"F{ahead + i}"', 'f"F{i}"'),
        "says": "rank 0: it makes F0 twice.",
    },
    "as with two ranks": {
        "kind": "more than two ranks",
        "change": ("n - 1 - rank", "1 - min(rank, 1)"),
        "says": "it never keeps 3 micro-batches at a time, and waits longer than it must.",
    },
}
