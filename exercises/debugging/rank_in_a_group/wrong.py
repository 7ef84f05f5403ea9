"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`src=0` for `src=1`": {
        "kind": "the example",
        "change": ("src=1", "src=0"),
        "says": "raised ValueError: Global rank 0 is not part of group",
    },
    "`range(0, dist` for `range(1, dist`": {
        "kind": "the example",
        "change": ("range(1, dist", "range(0, dist"),
        "says": "every rank: the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = []


def sum_of_the_others(x):
    if not KEPT:
        KEPT.append(right(x))
    return KEPT[0].clone()
""",
        "says": "the result is wrong.",
    },
    "it computes in float32": {
        "kind": "fractions",
        "around": """\
def sum_of_the_others(x):
    return right(x.long()).to(x.dtype)
""",
        "says": "the result is wrong.",
    },
    "only the members call new_group": {
        "kind": "a call that must be made",
        "around": """\
def sum_of_the_others(x):
    if dist.get_rank() == 0:
        return x.clone()
    return right(x)
""",
        "says": "this rank has not called new_group: every rank makes every group.",
    },
}
