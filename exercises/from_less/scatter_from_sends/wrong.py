"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`output.copy_(pieces[0])` for `output.copy_(piece)`": {
        "kind": "another root",
        "change": ("output.copy_(piece)", "output.copy_(pieces[0])"),
        "says": "rank 1: the result is wrong. The last right case: 2 ranks, src 0, 1000",
    },
    "without `output.copy_(piece)`": {
        "kind": "the example",
        "change": ("output.copy_(piece)", "pass"),
        "says": "rank 0: `output` is as it was: ",
    },
    "it sends to one rank only": {
        "kind": "more than two ranks",
        "change": (
            "        else:\n            dist.send(piece, rank)",
            "        elif rank == (me + 1) % len(pieces):\n            dist.send(piece, rank)",
        ),
        "says": "it hangs",
    },
    "it sends whole numbers": {
        "kind": "fractions",
        "around": """\
def scatter(output, pieces, src):
    whole = output.nan_to_num().long()
    right(whole, pieces and [piece.long() for piece in pieces], src)
    output.copy_(whole)
""",
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = {}


def scatter(output, pieces, src):
    if src not in KEPT:
        right(output, pieces, src)
        KEPT[src] = output.clone()
    output.copy_(KEPT[src][: len(output)])
""",
        "says": "the result is wrong.",
    },
    "it adds to the output": {
        "kind": "nan in the buffer",
        "around": """\
def scatter(output, pieces, src):
    piece = torch.zeros_like(output)
    right(piece, pieces, src)
    output.mul_(0).add_(piece)
""",
        "says": "`output` is as it was",
    },
}
