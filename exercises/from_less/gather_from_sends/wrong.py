"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`x for` for `x.clone() for`": {
        "kind": "the example",
        "change": ("x.clone() for", "x for"),
        "says": "`x` was changed",
    },
    "`dist.send(x, 0)` for `dist.send(x, dst)`": {
        "kind": "another root",
        "change": ("        dist.send(x, dst)", "        dist.send(x, 0)"),
        "says": "itself, which a rank cannot do",
    },
    "`rank > me` for `rank != me`": {
        "kind": "another root",
        "change": ("rank != me", "rank > me"),
        "says": "The last right case: 2 ranks, dst 0, 1000",
    },
    "the other ranks return their own tensor": {
        "kind": "the example",
        "change": ("        return []", "        return [x]"),
        "says": "the result is wrong.",
    },
    "whole numbers travel": {
        "kind": "fractions",
        "around": """\
def gather(x, dst):
    return [piece.to(x.dtype) for piece in right(x.long(), dst)]
""",
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = {}


def gather(x, dst):
    if dst not in KEPT:
        KEPT[dst] = right(x, dst)
    return KEPT[dst]
""",
        "says": "the result is wrong.",
    },
    "the order is by distance from the root": {
        "kind": "another root",
        "change": ("    return pieces\n", "    return pieces[me:] + pieces[:me]\n"),
        "says": "the result is wrong.",
    },
}
