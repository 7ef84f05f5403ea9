"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

WRONG = {
    "`sums[0] / dist.get_world_size()` for `sums[0] / sums[1]`": {
        "kind": "the example",
        "change": ("sums[0] / sums[1]", "sums[0] / dist.get_world_size()"),
        "says": "every rank: the result is wrong.",
    },
    "`dist.reduce(sums, 0)` for `dist.all_reduce(sums)`": {
        "kind": "the example",
        "change": ("dist.all_reduce(sums)", "dist.reduce(sums, 0)"),
        "says": "it calls dist.reduce: write `weighted_mean` with all_reduce alone.",
    },
    "it keeps the first result": keeps_the_first("weighted_mean(x)"),
    "it computes with whole numbers": {
        "kind": "fractions",
        "around": """\
def weighted_mean(x):
    return right(x.long().double())
""",
        "says": "the result is wrong.",
    },
    "each rank has as many as in the example": {
        "kind": "another length",
        "change": ("torch.ones_like(values).sum()", "values.new_tensor(1.5)"),
        "says": "the result is wrong.",
    },
}
