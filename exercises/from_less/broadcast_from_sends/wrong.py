"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`dist.recv(x.clone(), src)` for `dist.recv(x, src)`": {
        "kind": "the example",
        "change": ("dist.recv(x, src)", "dist.recv(x.clone(), src)"),
        "says": "rank 1: `x` is as it was: ",
    },
    "`True` for `rank != src`": {
        "kind": "the example",
        "change": ("rank != src", "True"),
        "says": "itself, which a rank cannot do",
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
    "it sends to one rank only": {
        "kind": "more than two ranks",
        "change": ("range(dist.get_world_size())", "[(src + 1) % dist.get_world_size()]"),
        "says": "it hangs",
    },
    "the root is always 0": {
        "kind": "another root",
        "change": ("dist.get_rank() == src", "dist.get_rank() == 0"),
        "says": "it sends to itself, which a rank cannot do.",
    },
    "it sends two elements": {
        "kind": "another length",
        "change": ("dist.send(x, rank)", "dist.send(x[:2].clone(), rank)"),
        "says": "the result is wrong.",
    },
}
