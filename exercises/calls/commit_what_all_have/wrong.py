"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "each rank decides for itself": {
        "kind": "the example",
        "change": ("    dist.all_reduce(complete, op=dist.ReduceOp.MIN)\n", ""),
        "says": "rank 1: ",
    },
    "`MAX` for `MIN`": {
        "kind": "the example",
        "change": ("ReduceOp.MIN", "ReduceOp.MAX"),
        "says": "rank 0 has nothing",
    },
    "`any(came)` for `all(came)`": {
        "kind": "a part has come",
        "change": ("all(came)", "any(came)"),
        "says": "rank 0 lacks the last tensor",
    },
    "it looks at the first tensor": {
        "kind": "a part has come",
        "change": ("all(came)", "came[0]"),
        "says": "rank 0 lacks the last tensor",
    },
    "rank 0 decides": {
        "kind": "another root",
        "around": """\
def commit(weights, spares, came):
    return right(weights, spares, came if dist.get_rank() == 0 else [True])
""",
        "says": "has nothing",
    },
    "`weight = spare` for `weight.copy_(spare)`": {
        "kind": "a second call",
        "change": ("weight.copy_(spare)", "weight = spare"),
        "says": "`weights` is as it was",
    },
    "it takes the spares themselves": {
        "kind": "a part has come",
        "around": """\
def commit(weights, spares, came):
    copies = [weight.clone() for weight in weights]
    has_all = right(copies, spares, came)
    if has_all:
        for weight, spare in zip(weights, spares, strict=True):
            weight.set_(spare)
    return has_all
""",
        "says": "`weights` has the right numbers in other memory",
    },
}
