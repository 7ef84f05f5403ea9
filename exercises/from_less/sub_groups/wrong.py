"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import in_whole_numbers, keeps_the_first

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
    "it keeps the first result": keeps_the_first("sum_of_my_row(x, width)"),
    "it computes with whole numbers": in_whole_numbers("sum_of_my_row(x, width)"),
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
    "all ranks add up the rows of others, too": {
        "kind": "what the text demands",
        "around": """\
def sum_of_my_row(x, width):
    rows = x.new_zeros(dist.get_world_size() // width, len(x))
    rows[dist.get_rank() // width] = x
    dist.all_reduce(rows)
    return rows[dist.get_rank() // width].clone()
""",
        "says": "The task says: the sum over the ranks of your own row",
    },
}
