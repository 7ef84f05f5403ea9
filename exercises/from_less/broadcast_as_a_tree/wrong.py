"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

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
    "every place sends, as with 2, 4 or 8 ranks": {
        "kind": "a number of ranks that is no power of two",
        "change": ("if place < distance and place + distance < n", "if place < distance"),
        "says": "it hangs",
    },
}
