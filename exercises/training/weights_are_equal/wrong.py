"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`MIN` for `MAX`": {
        "kind": "another length",
        "change": ("MAX", "MIN"),
        "says": "the result is wrong. The last right case: 2 ranks, equal weights.",
    },
    "`torch.equal(weights, highest)` for `torch.equal(lowest, highest)`": {
        "kind": "another length",
        "change": ("torch.equal(lowest, highest)", "torch.equal(weights, highest)"),
        "says": "rank 1: the result is wrong. The last right case: 2 ranks, equal weights.",
    },
    "each rank compares with the mean": {
        "kind": "values symmetrical among the ranks",
        "around": """\
def all_equal(weights):
    mean = weights.clone()
    dist.all_reduce(mean)
    return torch.equal(mean / dist.get_world_size(), weights)
""",
        "says": "the result is wrong.",
    },
    "it compares the sums": {
        "kind": "values symmetrical under permutation",
        "around": """\
def all_equal(weights):
    return right(weights.sum())
""",
        "says": "the result is wrong.",
    },
    "float32": {
        "kind": "numbers too large for float32",
        "around": """\
def all_equal(weights):
    return right(weights.float())
""",
        "says": "the result is wrong.",
    },
    "the mean on rank 0 decides": {
        "kind": "values symmetrical among the ranks",
        "around": """\
def all_equal(weights):
    total = weights.clone()
    dist.all_reduce(total)
    same = torch.tensor(int(torch.equal(total / dist.get_world_size(), weights)))
    dist.all_reduce(same, op=dist.ReduceOp.MAX)
    return bool(same)
""",
        "says": "the result is wrong.",
    },
    "it compares the norms": {
        "kind": "the same values in another order",
        "around": """\
def all_equal(weights):
    norm = weights.double().norm()
    return right(norm.view(1))
""",
        "says": "another order",
    },
    "it leaves out the last element": {
        "kind": "a difference at one place",
        "around": """\
def all_equal(weights):
    return right(weights[: max(1, len(weights) - 1)])
""",
        "says": "differs at place 3",
    },
}
