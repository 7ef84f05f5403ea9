"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`src=0` for `src=root`": {
        "kind": "another root",
        "change": ("src=root", "src=0"),
        "says": "`x` is as it was: ",
    },
    "`(x.long(), src=root)` for `(x, src=root)`": {
        "kind": "the example",
        "change": ("(x, src=root)", "(x.long(), src=root)"),
        "says": "rank 1: `x` is as it was: ",
    },
    "it sends whole numbers and copies them back": {
        "kind": "fractions",
        "around": """\
def fill_from_root(x, root):
    whole = x.nan_to_num().long()
    dist.broadcast(whole, src=root)
    x.copy_(whole)
""",
        "says": "the result is wrong.",
    },
    "it adds to what was there": {
        "kind": "the example",
        "around": """\
def fill_from_root(x, root):
    mine = x if dist.get_rank() == root else x * 0
    right(mine, root)
    x.mul_(0).add_(mine)
""",
        "says": "`x` is as it was",
    },
}
