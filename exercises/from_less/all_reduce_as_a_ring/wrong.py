"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`2 * n - 3` for `2 * (n - 1)`": {
        "kind": "the example",
        "change": ("2 * (n - 1)", "2 * n - 3"),
        "says": "every rank: the result is wrong.",
    },
    "`x[: len(x) // n * n].tensor_split(n)` for `x.tensor_split(n)`": {
        "kind": "another length",
        "change": ("x.tensor_split(n)", "x[: len(x) // n * n].tensor_split(n)"),
        "says": "every rank: the result is wrong. The last right case: 2 ranks, 4 elements,",
    },
    "`dist.isend(mine.clone(), (rank + 2) % n)` for `dist.isend(mine, (rank + 1) % n)`": {
        "kind": "the example",
        "change": ("dist.isend(mine, (rank + 1) % n)", "dist.isend(mine.clone(), (rank + 2) % n)"),
        "says": "itself, which a rank cannot do",
    },
    "it adds and sends in float32": {
        "kind": "numbers too large for float32",
        "around": """\
def all_reduce(x):
    short = x.float()
    right(short)
    x.copy_(short)
""",
        "says": "the result is wrong.",
    },
    "it sends whole numbers": {
        "kind": "fractions",
        "around": """\
def all_reduce(x):
    whole = x.nan_to_num().long()
    right(whole)
    x.copy_(whole)
""",
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = {}


def all_reduce(x):
    if 0 not in KEPT:
        right(x)
        KEPT[0] = x.clone()
    x.copy_(KEPT[0][: len(x)])
""",
        "says": "raised RuntimeError: The size of tensor a",
    },
    "the pieces rotate the other way": {
        "kind": "more than two ranks",
        "change": ("(rank - step - 1) % n", "(rank + step + 1) % n"),
        "says": "the result is wrong.",
    },
    "pieces of one length": {
        "kind": "lengths that n does not divide",
        "change": ("x.tensor_split(n)", "x.split(max(len(x) // n, 1))"),
        "says": "the result is wrong.",
    },
}
