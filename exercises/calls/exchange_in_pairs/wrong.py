"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`return x` for `return received`": {
        "kind": "the example",
        "change": ("return received", "return x"),
        "says": "every rank: the result is wrong.",
    },
    "without `dist.recv(received, peer)`": {
        "kind": "the example",
        "change": ("    dist.recv(received, peer)\n", ""),
        "says": "it hangs: after 2 s ",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = []


def exchange(x, peer):
    if not KEPT:
        KEPT.append(right(x, peer))
    return KEPT[0].clone()
""",
        "says": "the result is wrong.",
    },
    "it computes in float32": {
        "kind": "fractions",
        "around": """\
def exchange(x, peer):
    return right(x.long(), peer).to(x.dtype)
""",
        "says": "the result is wrong.",
    },
    "even ranks send first": {
        "kind": "any pair",
        "change": (
            "    work = dist.isend(x, peer)\n    dist.recv(received, peer)\n    work.wait()\n",
            "    if dist.get_rank() % 2 == 0:\n        dist.send(x, peer)\n        dist.recv(received, peer)\n    else:\n        dist.recv(received, peer)\n        dist.send(x, peer)\n",
        ),
        "says": "it hangs",
    },
    "the peer is the next rank": {
        "kind": "any pair",
        "change": ("    work = ", "    peer = dist.get_rank() ^ 1\n    work = "),
        "says": "the result is wrong.",
    },
}
