"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`dist.recv(pieces[rank])` for `dist.recv(pieces[rank], rank)`": {
        "kind": "more than two ranks",
        "change": ("dist.recv(pieces[rank], rank)", "dist.recv(pieces[rank])"),
        "says": "rank 0: the result is wrong.",
    },
    "`range(2, len(pieces))` for `range(1, len(pieces))`": {
        "kind": "the example",
        "change": ("range(1, len(pieces))", "range(2, len(pieces))"),
        "says": "rank 0: the result is wrong.",
    },
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def collect(x, late):
    return [piece.to(x.dtype) for piece in right(x.long(), late)]
""",
        "says": "the result is wrong.",
    },
    "it sorts what came": {
        "kind": "negative numbers",
        "around": """\
def collect(x, late):
    return sorted(right(x, late), key=lambda piece: piece[0].item())
""",
        "says": "the result is wrong.",
    },
}
