"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`right.float().mean().item()` for `counted.sum().item() / samples`": {
        "kind": "the example",
        "change": ("counted.sum().item() / samples", "right.float().mean().item()"),
        "says": "every rank: the result is wrong.",
    },
    "`op=dist.ReduceOp.SUM` for `op=dist.ReduceOp.MAX`": {
        "kind": "the example",
        "change": ("op=dist.ReduceOp.MAX", "op=dist.ReduceOp.SUM"),
        "says": "every rank: the result is wrong.",
    },
    "the padding comes from the front only": {
        "kind": "a padding of several samples",
        "around": """\
def accuracy(right_, numbers, samples):
    n = dist.get_world_size()
    mine = right_.clone()
    if dist.get_rank() == n - 1 and samples % n:
        mine[-1] = False
    total = mine.sum()
    dist.all_reduce(total)
    return total.item() / samples
""",
        "says": "the result is wrong.",
    },
}
