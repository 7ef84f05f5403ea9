"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`gradient = piece` for `gradient.copy_(piece.view_as(gradient))`": {
        "kind": "the example",
        "change": ("        gradient.copy_(piece.view_as(gradient))", "        gradient = piece"),
        "says": "every rank: `gradients` is as it was: ",
    },
    "`for part in bucket.split(1): dist.all_redu...` for `dist.all_reduce(bucket)`": {
        "kind": "the example",
        "change": (
            "    dist.all_reduce(bucket)\n",
            "    for part in bucket.split(1):\n        dist.all_reduce(part)\n",
        ),
        "says": "it made 6 calls; 1 is enough",
    },
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def average_gradients(gradients):
    whole = [gradient.long().double() for gradient in gradients]
    right(whole)
    for gradient, new in zip(gradients, whole, strict=True):
        gradient.copy_(new)
""",
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = []


def average_gradients(gradients):
    if not KEPT:
        right(gradients)
        KEPT.extend(gradient.clone() for gradient in gradients)
    for gradient, old in zip(gradients, KEPT, strict=True):
        gradient.copy_(old)
""",
        "says": "the result is wrong.",
    },
    "it divides by two": {
        "kind": "more than two ranks",
        "change": ("/= dist.get_world_size()", "/= 2"),
        "says": "the result is wrong.",
    },
}
