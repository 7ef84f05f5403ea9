"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "without `, op=dist.ReduceOp.MAX`": {
        "kind": "the example",
        "change": (", op=dist.ReduceOp.MAX", ""),
        "says": "every rank: the result is wrong.",
    },
    "`loss < limit` for `largest < limit`": {
        "kind": "the example",
        "change": ("largest < limit", "loss < limit"),
        "says": "rank 1: the result is wrong.",
    },
    "the first rank decides": {
        "kind": "any rank",
        "around": """\
def train(losses, limit):
    steps = 0
    for loss in losses:
        steps += 1
        dist.all_reduce(torch.ones(2))
        first = torch.tensor(loss if dist.get_rank() == 0 else 0.0)
        dist.all_reduce(first)
        if first < limit:
            break
    return steps
""",
        "says": "the result is wrong.",
    },
    "once below is below for ever": {
        "kind": "a loss that rises again",
        "around": """\
def train(losses, limit):
    steps, done = 0, False
    for loss in losses:
        steps += 1
        dist.all_reduce(torch.ones(2))
        done = done or loss < limit
        all_done = torch.tensor(int(done))
        dist.all_reduce(all_done, op=dist.ReduceOp.MIN)
        if all_done:
            break
    return steps
""",
        "says": "the result is wrong.",
    },
    "the limit counts as below": {
        "kind": "a loss that equals the limit",
        "change": ("largest < limit", "largest <= limit"),
        "says": "the result is wrong.",
    },
}
