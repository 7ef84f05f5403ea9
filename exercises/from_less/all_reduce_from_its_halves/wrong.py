"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from all_reduces import WRONG_ALL_REDUCES

WRONG = {
    "`len(x) // n * n` for `-(-len(x) // n) * n`": {
        "kind": "another length",
        "change": ("-(-len(x) // n) * n", "len(x) // n * n"),
        "says": "raised RuntimeError: The expanded size of the tensor (2) must match",
    },
    "without `x.copy_(padded[: len(x)])`": {
        "kind": "the example",
        "change": ("    x.copy_(padded[: len(x)])\n", ""),
        "says": "every rank: `x` is as it was: ",
    },
    "no padding": {
        "kind": "lengths that n does not divide",
        "change": ("x.new_zeros(-(-len(x) // n) * n)", "x.new_zeros(len(x))"),
        "says": "raised RuntimeError: Check failed: outputShape",
    },
    "it gathers all tensors, and adds them up itself": {
        "kind": "more than two ranks",
        "around": """\
def all_reduce(x):
    rows = x.new_empty(dist.get_world_size(), len(x))
    dist.all_gather_single(rows.view(-1), x)
    x.copy_(rows.sum(0))
""",
        "says": "The task says: no rank may hold",
    },
} | WRONG_ALL_REDUCES
