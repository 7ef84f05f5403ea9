"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`src=0` for `src=root`": {
        "kind": "the example",
        "change": ("src=root", "src=0"),
        "says": "every rank: the result is wrong.",
    },
    "without `pieces[dist.get_rank()].copy_(x)`": {
        "kind": "the example",
        "change": ("    pieces[dist.get_rank()].copy_(x)\n", ""),
        "says": "every rank: `pieces` is as it was: ",
    },
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def all_gather(pieces, x):
    whole = [piece.nan_to_num().long() for piece in pieces]
    right(whole, x.long())
    for piece, new in zip(pieces, whole, strict=True):
        piece.copy_(new)
""",
        "says": "the result is wrong.",
    },
    "float32": {
        "kind": "numbers too large for float32",
        "around": """\
def all_gather(pieces, x):
    short = [piece.float() for piece in pieces]
    right(short, x.float())
    for piece, new in zip(pieces, short, strict=True):
        piece.copy_(new)
""",
        "says": "the result is wrong.",
    },
    "two pieces": {
        "kind": "more than two ranks",
        "change": ("enumerate(pieces)", "enumerate(pieces[:2])"),
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = []


def all_gather(pieces, x):
    if not KEPT:
        right(pieces, x)
        KEPT.extend(piece.clone() for piece in pieces)
    for piece, old in zip(pieces, KEPT, strict=True):
        piece.copy_(old[: len(piece)])
""",
        "says": "the result is wrong.",
    },
}
