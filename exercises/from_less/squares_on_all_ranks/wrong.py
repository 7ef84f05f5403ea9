"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`dst=0` for `dst=root`": {
        "kind": "another root",
        "change": ("dst=root", "dst=0"),
        "says": "raised ValueError: Argument ``gather_list`` must",
    },
    "`dist.gather(x` for `dist.gather(x.square()`": {
        "kind": "the example",
        "change": ("dist.gather(x.square()", "dist.gather(x"),
        "says": "rank 0: the result is wrong.",
    },
    "whole numbers": {
        "kind": "fractions",
        "change": ("x.square()", "x.long().float().square()"),
        "says": "the result is wrong.",
    },
    "the numbers are positive": {
        "kind": "negative numbers",
        "change": ("x.square()", "x * x.abs()"),
        "says": "the result is wrong.",
    },
    "the root does all": {
        "kind": "what the text demands",
        "around": """\
def on_all_ranks(numbers, root):
    return torch.tensor([]) if numbers is None else numbers**2
""",
        "says": "it made 0 calls; at least 2 are needed. The task says: each rank squares",
    },
}
