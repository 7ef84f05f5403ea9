"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

WRONG = {
    "it compares with rank 0 only": {
        "kind": "the example",
        "change": (
            "all(torch.equal(one, mine) for one in found)",
            "torch.equal(found[0], mine)",
        ),
        "says": "rank 0: the result is wrong.",
    },
    "`one.numel()` for `tuple(one.shape)`": {
        "kind": "another shape",
        "change": ("tuple(one.shape)", "one.numel()"),
        "says": "another shape",
    },
    "without the dtype": {
        "kind": "another dtype",
        "change": (", str(one.dtype)", ""),
        "says": "another dtype",
    },
    "sorted by name": {
        "kind": "another order",
        "change": ("in weights.items()]", "in sorted(weights.items())]"),
        "says": "another order",
    },
    "the hash of the values": {
        "kind": "other values",
        "change": ("str(one.dtype))", "str(one.dtype), one.tolist())"),
        "says": "equal plans, other values",
    },
    "only the first two tensors": {
        "kind": "another length",
        "change": ("repr(plan)", "repr(plan[:2])"),
        "says": "one tensor more",
    },
    "it keeps the first result": keeps_the_first(
        "same_plan(weights)", "equal plans are told unequal"
    ),
    "Python's own `hash`": {
        "kind": "other values",
        "around": """\
def same_plan(weights):
    plan = tuple((name, *one.shape, str(one.dtype)) for name, one in weights.items())
    mine = torch.tensor([hash(plan)])
    all_of_them = mine.new_empty(dist.get_world_size())
    dist.all_gather_single(all_of_them, mine)
    return len(all_of_them.unique()) == 1
""",
        "says": "equal plans are told unequal",
    },
}
