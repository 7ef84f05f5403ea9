"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "without `dist.broadcast(shared, src=0)`": {
        "kind": "the example",
        "change": ("    dist.broadcast(shared, src=0)\n", ""),
        "says": "rank 1: the result is wrong.",
    },
    "`src=dist.get_world_size() - 1` for `src=0`": {
        "kind": "the example",
        "change": ("src=0", "src=dist.get_world_size() - 1"),
        "says": "every rank: the result is wrong.",
    },
    "always the seed 0": {
        "kind": "a second call",
        "around": """\
def draw(length, seed):
    dist.broadcast(torch.zeros(1), src=0)
    return torch.rand(length, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
""",
        "says": "the result is wrong.",
    },
    "three numbers": {
        "kind": "another length",
        "change": ("torch.rand(length,", "torch.rand(3,"),
        "says": "the result is wrong.",
    },
    "the seed travels in float32": {
        "kind": "a seed above 2**24",
        "around": """\
def draw(length, seed):
    shared = torch.tensor([float(seed)])
    dist.broadcast(shared, src=0)
    generator = torch.Generator().manual_seed(int(shared))
    return torch.rand(length, generator=generator, dtype=torch.float64)
""",
        "says": "the result is wrong.",
    },
}
