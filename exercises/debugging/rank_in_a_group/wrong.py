"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import in_whole_numbers, keeps_the_first

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
    "it keeps the first result": keeps_the_first("sum_of_the_others(x)"),
    "it computes with whole numbers": in_whole_numbers("sum_of_the_others(x)"),
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
