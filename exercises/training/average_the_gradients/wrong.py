"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "without `gradient /= dist.get_world_size()`": {
        "kind": "the example",
        "change": ("        gradient /= dist.get_world_size()\n", ""),
        "says": "every rank: `gradients` is 2 times too large, as the sum",
    },
    "`for gradient in gradients[:-1]` for `for gradient in gradients`": {
        "kind": "the example",
        "change": ("for gradient in gradients", "for gradient in gradients[:-1]"),
        "says": "every rank: the result is wrong.",
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
