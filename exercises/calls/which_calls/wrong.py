"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`src=0` for `src=dist.get_world_size() - 1`": {
        "kind": "the example",
        "change": ("src=dist.get_world_size() - 1", "src=0"),
        "says": "every rank: the result is wrong.",
    },
    "all_reduce and a slice for reduce_scatter": {
        "kind": "the example",
        "change": (
            "dist.reduce_scatter_single(c, x)",
            "total = x.clone(); dist.all_reduce(total); dist.barrier(); c = total[[dist.get_rank()]]",
        ),
        "says": "it made 4 calls; 3 are enough",
    },
    "`a` is the largest of all ranks": {
        "kind": "data that do not rise with the rank",
        "around": """\
def results(x):
    a, b, c = right(x)
    return torch.maximum(a, x), b, c
""",
        "says": "the result is wrong.",
    },
    "`c` by all_reduce and a slice": {
        "kind": "what the text demands",
        "around": """\
def results(x):
    a, b, c = x.clone(), torch.empty_like(x), x.clone()
    dist.broadcast(a, src=dist.get_world_size() - 1)
    dist.all_to_all_single(b, x)
    dist.all_reduce(c)
    return a, b, c[[dist.get_rank()]]
""",
        "says": "it gave 16 bytes to all_reduce; 0 are enough.",
    },
}
