"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`range(tensors - 1)` for `range(tensors)`": {
        "kind": "the example",
        "change": ("range(tensors)", "range(tensors - 1)"),
        "says": "rank 1: the result is wrong.",
    },
    "it receives two of three tensors": {
        "kind": "the example",
        "change": (
            "    for tensor in received:\n        dist.recv(tensor, 0)\n",
            "    for tensor in received[:2]:\n        dist.recv(tensor, 0)\n",
        ),
        "says": "rank 1: the result is wrong.",
    },
    "it waits in the loop": {
        "kind": "what the text demands",
        "around": """\
def send_all(tensors):
    if dist.get_rank() > 0:
        return right(tensors)
    for tensor in tensors:
        dist.isend(tensor, 1).wait()
    return [tensor.clone() for tensor in tensors]
""",
        "says": "it waits for message 1 before it sends the next one.",
    },
    "rank 1 takes three": {
        "kind": "another length",
        "change": ("for _ in range(tensors)]", "for _ in range(3)]"),
        "says": "the result is wrong.",
    },
}
