"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from broadcasts import WRONG_BROADCASTS

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
    "it sends to one rank only": {
        "kind": "more than two ranks",
        "change": ("range(dist.get_world_size())", "[(src + 1) % dist.get_world_size()]"),
        "says": "it hangs",
    },
    "the root is always 0": {
        "kind": "another root",
        "change": ("dist.get_rank() == src", "dist.get_rank() == 0"),
        "says": "itself, which a rank cannot do",
    },
    "it sends two elements": {
        "kind": "another length",
        "change": ("dist.send(x, rank)", "dist.send(x[:2].clone(), rank)"),
        "says": "the result is wrong.",
    },
} | WRONG_BROADCASTS
