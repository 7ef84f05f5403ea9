"""Calls of a broadcast: from each root, with several lengths."""

from collections.abc import Iterator

from collectives.course.practice.data import at_each_root, moved, poison
from collectives.course.practice.exercise import ExerciseCase


def broadcasts(rank: int, n: int, messages: int | None = None) -> Iterator[ExerciseCase]:
    for root, call, length, label in at_each_root(n, "src"):
        wanted = moved(root, length, call)
        wanted = wanted - 2**40 if call == 1 else wanted
        # Below the numbers of the root, except below negative ones: neither MAX nor MIN is right.
        old = poison(wanted) * (-1 if call == 1 else 1)
        x = wanted.clone() if rank == root else old
        yield ExerciseCase(label, (x, root), after={0: wanted}, messages=messages)


# Wrong answers to each of these exercises: wrong.py adds its own.
WRONG_BROADCASTS = {
    "it sends float32": {
        "kind": "numbers too large for float32",
        "around": """\
def broadcast(x, src):
    short = x.float()
    right(short, src)
    x.copy_(short)
""",
        "says": "the result is wrong.",
    },
    "it sends whole numbers": {
        "kind": "fractions",
        "around": """\
def broadcast(x, src):
    whole = x.nan_to_num().long()
    right(whole, src)
    x.copy_(whole)
""",
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = {}


def broadcast(x, src):
    if src not in KEPT:
        right(x, src)
        KEPT[src] = x.clone()
    x.copy_(KEPT[src][: len(x)])
""",
        "says": "the result is wrong.",
    },
    "it keeps the larger number": {
        "kind": "negative numbers",
        "around": """\
def broadcast(x, src):
    old = x.clone()
    right(x, src)
    torch.maximum(x, old, out=x)
""",
        "says": "`x` is as it was",
    },
}
