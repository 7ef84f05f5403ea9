"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`received[0]` for `received[root]`": {
        "kind": "the example",
        "change": ("received[root]", "received[0]"),
        "says": "every rank: the result is wrong.",
    },
    "`src=0` for `src=root`": {
        "kind": "the example",
        "change": ("src=root", "src=0"),
        "says": "raised ValueError: Argument ``scatter_list`` must",
    },
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def all_to_all(received, sent):
    whole = [piece.nan_to_num().long() for piece in received]
    right(whole, [piece.long() for piece in sent])
    for piece, new in zip(received, whole, strict=True):
        piece.copy_(new)
""",
        "says": "the result is wrong.",
    },
    "float32": {
        "kind": "numbers too large for float32",
        "around": """\
def all_to_all(received, sent):
    short = [piece.float() for piece in received]
    right(short, [piece.float() for piece in sent])
    for piece, new in zip(received, short, strict=True):
        piece.copy_(new)
""",
        "says": "the result is wrong.",
    },
    "two roots": {
        "kind": "more than two ranks",
        "change": ("range(dist.get_world_size())", "range(min(2, dist.get_world_size()))"),
        "says": "the result is wrong.",
    },
}
