"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`sum(0)` for `mean(0)`": {
        "kind": "the example",
        "change": ("mean(0)", "sum(0)"),
        "says": "every rank: the result is wrong.",
    },
    "without `/ dist.get_world_size()`": {
        "kind": "the example",
        "change": (" / dist.get_world_size()", ""),
        "says": "every rank: the result is wrong.",
    },
    "the last micro-batch alone": {
        "kind": "the example",
        "change": ("torch.stack(gradients).mean(0)", "gradients[-1]"),
        "says": "every rank: the result is wrong.",
    },
    "a reduction for each micro-batch": {
        "kind": "what is counted",
        "around": """\
def step(shard, gradients):
    for one in gradients:
        right(shard, [one / len(gradients)])
""",
        "says": "it made 2 calls; 1 is enough.",
    },
    "`shard = shard - mine` for `shard.sub_(mine)`": {
        "kind": "the example",
        "change": ("shard.sub_(mine)", "shard = shard - mine"),
        "says": "every rank: `shard` is as it was",
    },
    "the mean of two": {
        "kind": "more than two ranks",
        "change": ("dist.get_world_size()", "2"),
        "says": "the result is wrong.",
    },
    "two micro-batches": {
        "kind": "another length",
        "change": ("torch.stack(gradients)", "torch.stack(gradients[:2])"),
        "says": "the result is wrong.",
    },
    "it keeps the first gradients": {
        "kind": "a second call",
        "around": """\
KEPT = []


def step(shard, gradients):
    KEPT.append([one[: len(gradients[0])].clone() for one in gradients])
    right(shard, [one[: len(gradients[0])] for one in KEPT[0]] if len(KEPT) == 2 else gradients)
""",
        "says": "the result is wrong.",
    },
}
