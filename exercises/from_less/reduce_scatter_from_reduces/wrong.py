"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`piece` for `piece.clone()`": {
        "kind": "the example",
        "change": ("piece.clone()", "piece"),
        "says": "`pieces` was changed",
    },
    "`dst=0` for `dst=root`": {
        "kind": "the example",
        "change": ("dst=root", "dst=0"),
        "says": "the result is wrong.",
    },
    "only for two ranks": {
        "kind": "more than two ranks",
        "change": ("enumerate(pieces)", "enumerate(pieces[:2])"),
        "says": "`output` is as it was",
    },
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def reduce_scatter(output, pieces):
    whole = output.nan_to_num().long()
    right(whole, [piece.long() for piece in pieces])
    output.copy_(whole)
""",
        "says": "the result is wrong.",
    },
    "it adds to the output": {
        "kind": "nan in the buffer",
        "around": """\
def reduce_scatter(output, pieces):
    total = torch.zeros_like(output)
    right(total, pieces)
    output.mul_(0).add_(total)
""",
        "says": "`output` is as it was",
    },
    "float32": {
        "kind": "numbers too large for float32",
        "around": """\
def reduce_scatter(output, pieces):
    total = torch.zeros_like(output).float()
    right(total, [piece.float() for piece in pieces])
    output.copy_(total)
""",
        "says": "the result is wrong.",
    },
}
