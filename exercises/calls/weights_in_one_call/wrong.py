"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`weight = piece` for `weight.copy_(piece.view_as(weight))`": {
        "kind": "the example",
        "change": ("        weight.copy_(piece.view_as(weight))\n", "        weight = piece\n"),
        "says": "rank 1: `weights` is as it was: ",
    },
    "`src=0` for `src=trainer`": {
        "kind": "another root",
        "change": ("src=trainer", "src=0"),
        "says": "2 ranks, trainer 1: rank 0: `weights` is as it was: ",
    },
    "it sends whole numbers": {
        "kind": "fractions",
        "around": """\
def update(weights, trainer):
    whole = [weight.nan_to_num().long() for weight in weights]
    right(whole, trainer)
    for weight, new in zip(weights, whole, strict=True):
        weight.copy_(new)
""",
        "says": "3 ranks, trainer 2: ",
    },
    "it writes into a flat view": {
        "kind": "a tensor that is not contiguous",
        "change": ("weight.copy_(piece.view_as(weight))", "weight.view(-1).copy_(piece)"),
        "says": "raised RuntimeError: view size is not compatible with input t",
    },
}
