"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from gradients import WRONG_GRADIENTS

WRONG = {
    "`gradient = piece` for `gradient.copy_(piece.view_as(gradient))`": {
        "kind": "the example",
        "change": ("        gradient.copy_(piece.view_as(gradient))", "        gradient = piece"),
        "says": "every rank: `gradients` is as it was: ",
    },
    "a call for each element of the bucket": {
        "kind": "the example",
        "change": (
            "    dist.all_reduce(bucket)\n",
            "    for part in bucket.split(1):\n        dist.all_reduce(part)\n",
        ),
        "says": "it made 6 calls; 1 is enough",
    },
    "it divides by two": {
        "kind": "more than two ranks",
        "change": ("/= dist.get_world_size()", "/= 2"),
        "says": "the result is wrong.",
    },
} | WRONG_GRADIENTS
