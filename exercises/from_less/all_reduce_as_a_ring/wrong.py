"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from all_reduces import WRONG_ALL_REDUCES

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
} | WRONG_ALL_REDUCES
