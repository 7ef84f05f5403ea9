"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

WRONG = {
    "`len(labels)` for `counts[1].double()`": {
        "kind": "the example",
        "change": ("counts[1].double()", "len(labels)"),
        "says": "every rank: the result is wrong.",
    },
    "without `.item()`": {
        "kind": "the example",
        "change": (".item()", ""),
        "says": "it returned a Tensor, not a float.",
    },
    "a rank without predictions stays out": {
        "kind": "an empty shard",
        "change": (
            "    dist.all_reduce(counts)\n",
            "    if len(labels):\n        dist.all_reduce(counts)\n",
        ),
        "says": "the result is wrong.",
    },
    "it keeps the first result": keeps_the_first("accuracy(predictions, labels)"),
}
