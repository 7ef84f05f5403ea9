"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import in_whole_numbers

WRONG = {
    "`x.split(size)[:1]` for `x.split(size)`": {
        "kind": "the example",
        "change": ("x.split(size)", "x.split(size)[:1]"),
        "says": "rank 0: the result is wrong.",
    },
    "`.indices` for `.values`": {
        "kind": "the example",
        "change": (".values", ".indices"),
        "says": "rank 0: the result is wrong.",
    },
    "the middle of the ranks": {
        "kind": "data that do not rise with the rank",
        "change": ("torch.stack(rows).median(dim=0).values", "rows[(len(rows) - 1) // 2]"),
        "says": "the result is wrong.",
    },
    "the mean of the two in the middle": {
        "kind": "the example",
        "change": (
            "torch.stack(rows).median(dim=0).values",
            "torch.stack(rows).double().quantile(0.5, dim=0).to(part.dtype)",
        ),
        "says": "the result is wrong.",
    },
    "it computes with whole numbers": in_whole_numbers("median_of_all(x, size)"),
    "it gathers all at once": {
        "kind": "what is counted",
        "around": """\
def median_of_all(x, size):
    is_root = dist.get_rank() == 0
    table = x.new_empty(dist.get_world_size(), len(x))
    dist.gather(x, list(table) if is_root else None, dst=0)
    return table.median(0).values if is_root else x[:0]
""",
        "says": "32 are enough. The task says: rank 0 only has room for `size` numbers",
    },
}
