"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

WRONG = {
    "it waits in each call": {
        "kind": "the example",
        "change": (
            "works.append(dist.all_reduce(gradient, async_op=True))",
            "dist.all_reduce(gradient)",
        ),
        "says": "it waits for its first sum before it asks for the second tensor: nothing overlaps",
    },
    "`sums.append(gradient.clone())` for `sums.append(gradient)`": {
        "kind": "the example",
        "change": ("sums.append(gradient)", "sums.append(gradient.clone())"),
        "says": "the result is wrong.",
    },
    "`works[-1].wait()` for `for work in works: work.wait()`": {
        "kind": "the example",
        "change": ("    for work in works:\n        work.wait()\n", "    works[-1].wait()\n"),
        "says": "every rank: it does not wait for its all_reduce",
    },
    "`for gradient in list(gradients)` for `for gradient in gradients`": {
        "kind": "the example",
        "change": ("for gradient in gradients", "for gradient in list(gradients)"),
        "says": "it asks for tensor 2 before it starts the all_reduce of tensor 1",
    },
    "it keeps the first result": keeps_the_first("overlapped(gradients)"),
    "exactly three tensors": {
        "kind": "another length",
        "around": """\
def overlapped(gradients):
    return right(tensor for _, tensor in zip(range(3), gradients))
""",
        "says": "it waits for its latest sum before it asks for the next tensor: nothing overlaps",
    },
}
