"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "without `* n + rank`": {
        "kind": "the example",
        "change": (" * n + rank", ""),
        "says": "rank 0: the result is wrong.",
    },
    "without `, op=dist.ReduceOp.MAX`": {
        "kind": "the example",
        "change": (", op=dist.ReduceOp.MAX", ""),
        "says": "rank 0: the result is wrong.",
    },
    "float32 and a tenth for the rank": {
        "kind": "numbers too large for float32",
        "around": """\
def slowest(milliseconds):
    x = torch.tensor([milliseconds + dist.get_rank() / 10])
    dist.reduce(x, dst=0, op=dist.ReduceOp.MAX)
    longest = int(x.item())
    return (longest, round(10 * (x.item() - longest))) if dist.get_rank() == 0 else (0, 0)
""",
        "says": "the result is wrong.",
    },
    "two ranks": {
        "kind": "more than two ranks",
        "change": (
            "n, rank = dist.get_world_size(), dist.get_rank()",
            "n, rank = 2, dist.get_rank()",
        ),
        "says": "the result is wrong.",
    },
    "one digit for the rank": {
        "kind": "another number of ranks",
        "around": """\
def slowest(milliseconds):
    x = torch.tensor(10 * milliseconds + dist.get_rank())
    dist.reduce(x, dst=0, op=dist.ReduceOp.MAX)
    return divmod(int(x), 10) if dist.get_rank() == 0 else (0, 0)
""",
        "says": "11 ranks",
    },
    "two numbers": {
        "kind": "what is counted",
        "around": """\
def slowest(milliseconds):
    x = torch.tensor([milliseconds * dist.get_world_size() + dist.get_rank(), 0])
    dist.reduce(x, dst=0, op=dist.ReduceOp.MAX)
    longest, rank = divmod(x[0].item(), dist.get_world_size())
    return (longest, rank) if dist.get_rank() == 0 else (0, 0)
""",
        "says": "it sent 16 bytes; 8 are enough. The task says: with one number",
    },
}
