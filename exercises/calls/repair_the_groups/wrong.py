"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

WRONG = {
    "`reversed(range(dist.get_world_size() - 1))` for `range(dist.get_world_size() - 1)`": {
        "kind": "the example",
        "change": (
            "range(dist.get_world_size() - 1)",
            "reversed(range(dist.get_world_size() - 1))",
        ),
        "says": "rank 1: the result is wrong.",
    },
    "without `, group=pair`": {
        "kind": "the example",
        "change": (", group=pair", ""),
        "says": "3 ranks, run 1",
    },
    "only the first pair": {
        "kind": "the example",
        "change": ("range(dist.get_world_size() - 1)", "range(min(1, dist.get_world_size() - 1))"),
        "says": "the result is wrong.",
    },
    "it keeps the first result": keeps_the_first("sums_of_pairs(x)"),
    "all ranks add up zeros for the pairs of others": {
        "kind": "what the text demands",
        "around": """\
def sums_of_pairs(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    table = x.new_zeros(n, len(x))
    table[max(rank - 1, 0) : min(rank, n - 2) + 1] += x
    dist.all_reduce(table)
    return list(table[max(rank - 1, 0) : min(rank, n - 2) + 1])
""",
        "says": "The task says: each pair of neighbours is a group",
    },
}
