"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "without `, group=group`": {
        "kind": "the example",
        "change": (", group=group", ""),
        "says": "every rank: the result is wrong.",
    },
    "`total = x` for `total = x.clone()`": {
        "kind": "the example",
        "change": ("total = x.clone()", "total = x"),
        "says": "`x` was changed",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = []


def sum_of_my_row(x, width):
    if not KEPT:
        KEPT.append(right(x, width))
    return KEPT[0].clone()
""",
        "says": "the result is wrong.",
    },
    "it computes in float32": {
        "kind": "fractions",
        "around": """\
def sum_of_my_row(x, width):
    return right(x.long(), width).to(x.dtype)
""",
        "says": "the result is wrong.",
    },
    "only its own row": {
        "kind": "a race",
        "change": (
            "        group = dist.new_group(row)\n        if dist.get_rank() in row:\n",
            "        if dist.get_rank() in row:\n            group = dist.new_group(row)\n",
        ),
        "says": "the result is wrong.",
    },
    "every second rank": {
        "kind": "another grid",
        "change": (
            "list(range(first, first + width))",
            "list(range(first, min(first + 2, dist.get_world_size())))",
        ),
        "says": "the result is wrong.",
    },
}
