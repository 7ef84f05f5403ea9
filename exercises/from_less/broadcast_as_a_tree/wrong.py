"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from broadcasts import WRONG_BROADCASTS

WRONG = {
    "`place < distance` for `place < distance and place + distance < n`": {
        "kind": "more than two ranks",
        "change": ("place < distance and place + distance < n", "place < distance"),
        "says": "it hangs: after 2 s ",
    },
    "`dist.get_rank()` for `(dist.get_rank() - src) % n`": {
        "kind": "another root",
        "change": ("(dist.get_rank() - src) % n", "dist.get_rank()"),
        "says": "itself, which a rank cannot do",
    },
    "`distance += 1` for `distance *= 2`": {
        "kind": "another number of ranks",
        "change": ("distance *= 2", "distance += 1"),
        "says": "it sent 3 messages; 2 are enough.",
    },
    "every place sends, as with 2, 4 or 8 ranks": {
        "kind": "a number of ranks that is no power of two",
        "change": ("if place < distance and place + distance < n", "if place < distance"),
        "says": "it hangs",
    },
} | WRONG_BROADCASTS
