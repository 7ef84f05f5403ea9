"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from gradients import WRONG_GRADIENTS

WRONG = {
    "without `gradient /= dist.get_world_size()`": {
        "kind": "the example",
        "change": ("        gradient /= dist.get_world_size()\n", ""),
        "says": "every rank: `gradients` is 2 times too large, so it is the sum",
    },
    "`for gradient in gradients[:-1]` for `for gradient in gradients`": {
        "kind": "the example",
        "change": ("for gradient in gradients", "for gradient in gradients[:-1]"),
        "says": "every rank: the result is wrong.",
    },
    "it divides by two": {
        "kind": "more than two ranks",
        "change": ("/= dist.get_world_size()", "/= 2"),
        "says": "the result is wrong.",
    },
} | WRONG_GRADIENTS
