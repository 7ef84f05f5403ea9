"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

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
    "it adds and sends in float32": {
        "kind": "numbers too large for float32",
        "around": """\
def all_reduce(x):
    short = x.float()
    right(short)
    x.copy_(short)
""",
        "says": "the result is wrong.",
    },
    "it sends whole numbers": {
        "kind": "fractions",
        "around": """\
def all_reduce(x):
    whole = x.nan_to_num().long()
    right(whole)
    x.copy_(whole)
""",
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = {}


def all_reduce(x):
    if 0 not in KEPT:
        right(x)
        KEPT[0] = x.clone()
    x.copy_(KEPT[0][: len(x)])
""",
        "says": "raised RuntimeError: The size of tensor a",
    },
    "no padding": {
        "kind": "lengths that n does not divide",
        "change": ("x.new_zeros(-(-len(x) // n) * n)", "x.new_zeros(len(x))"),
        "says": "raised RuntimeError: Check failed: outputShape",
    },
}
