"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import in_whole_numbers, keeps_the_first

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
    "it keeps the first result": keeps_the_first("exchange(x, peer)"),
    "it computes with whole numbers": in_whole_numbers("exchange(x, peer)"),
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
