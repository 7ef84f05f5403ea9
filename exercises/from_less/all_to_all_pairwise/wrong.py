"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`received[right]` for `received[left]`": {
        "kind": "more than two ranks",
        "change": ("received[left]", "received[right]"),
        "says": "The last right case: 2 ranks, 1000 elements,",
    },
    "`range(n)` for `range(1, n)`": {
        "kind": "the example",
        "change": ("range(1, n)", "range(n)"),
        "says": "itself, which a rank cannot do",
    },
    "`(rank + distance) % n` for `(rank - distance) % n`": {
        "kind": "more than two ranks",
        "change": ("(rank - distance) % n", "(rank + distance) % n"),
        "says": "it hangs: after 2 s ",
    },
    "it forgets its own piece": {
        "kind": "one rank",
        "change": ("range(1, n)", "range(1, max(n, 2))"),
        "says": "itself, which a rank cannot do",
    },
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def all_to_all(pieces):
    return [piece.to(pieces[0].dtype) for piece in right([piece.long() for piece in pieces])]
""",
        "says": "the result is wrong.",
    },
    "float32": {
        "kind": "numbers too large for float32",
        "around": """\
def all_to_all(pieces):
    return [piece.to(pieces[0].dtype) for piece in right([piece.float() for piece in pieces])]
""",
        "says": "the result is wrong.",
    },
    "partners by xor": {
        "kind": "a number of ranks that is no power of two",
        "change": (
            "right, left = (rank + distance) % n, (rank - distance) % n",
            "right = left = (rank ^ distance) % n",
        ),
        "says": "it hangs",
    },
}
