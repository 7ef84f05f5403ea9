"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

WRONG = {
    "only rank 0 calls broadcast": {
        "kind": "the example",
        "change": (
            "    dist.broadcast(shared, src=0)\n",
            "    if dist.get_rank() == 0:\n        dist.broadcast(shared, src=0)\n",
        ),
        "says": "it hangs: after 2 s ",
    },
    "`src=dist.get_world_size() - 1` for `src=0`": {
        "kind": "the example",
        "change": ("src=0", "src=dist.get_world_size() - 1"),
        "says": "every rank: the result is wrong.",
    },
    "`return shared, total` for `return shared.item(), total.item()`": {
        "kind": "the example",
        "change": ("return shared.item(), total.item()", "return shared, total"),
        "says": "every rank: it returned (a Tensor, a Tensor), not (a float, an int).",
    },
    "it keeps the first result": keeps_the_first("agree(rate, samples)"),
    "the largest rate": {
        "kind": "data that do not rise with the rank",
        "change": (
            "    dist.broadcast(shared, src=0)\n",
            "    dist.all_reduce(shared, op=dist.ReduceOp.MAX)\n",
        ),
        "says": "the result is wrong.",
    },
    "samples as float32": {
        "kind": "numbers too large for float32",
        "around": """\
def agree(rate, samples):
    both = torch.tensor([rate if dist.get_rank() == 0 else 0.0, samples])
    dist.all_reduce(both)
    return both[0].item(), int(both[1].item())
""",
        "says": "the result is wrong.",
    },
}
