"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import in_float32, keeps_the_first

WRONG = {
    "`dist.send(x, (rank + 1) % n)` for `work = dist.isend(x, (rank + 1) % n)`": {
        "kind": "the example",
        "change": ("work = dist.isend(x, (rank + 1) % n)", "dist.send(x, (rank + 1) % n)"),
        "says": "it hangs: after 2 s ",
    },
    "`return x.copy_(received)` for `return received`": {
        "kind": "the example",
        "change": ("return received", "return x.copy_(received)"),
        "says": "`x` was changed",
    },
    "without `if n == 1: return x.clone()`": {
        "kind": "one rank",
        "change": ("    if n == 1:\n        return x.clone()\n", ""),
        "says": "itself, which a rank cannot do",
    },
    "`return received.float()` for `return received`": {
        "kind": "the example",
        "change": ("return received", "return received.float()"),
        "says": "the result is of type torch.float32, not torch.int64",
    },
    "`work.wait()` for `work.wait() return received`": {
        "kind": "the example",
        "change": ("    work.wait()\n    return received\n", "    work.wait()\n"),
        "says": "it returned nothing",
    },
    "without `work.wait()`": {
        "kind": "the example",
        "change": ("    work.wait()\n", ""),
        "says": "it does not wait for its isend in line 10: call `wait()` of the Work",
    },
    "it keeps the first result": keeps_the_first("shift(x)"),
    "it computes in float32": in_float32("shift(x)"),
    "the left neighbour is the right one": {
        "kind": "more than two ranks",
        "change": ("(rank - 1) % n", "(rank + 1) % n"),
        "says": "it hangs",
    },
    "it forgets a single rank": {
        "kind": "one rank",
        "change": ("    if n == 1:\n        return x.clone()\n", ""),
        "says": "itself, which a rank cannot do",
    },
    "it sends two elements": {
        "kind": "another length",
        "change": ("dist.isend(x,", "dist.isend(x[:2],"),
        "says": "the result is wrong.",
    },
    "a single rank returns `x` itself": {
        "kind": "one rank",
        "around": """\
def shift(x):
    return x if dist.get_world_size() == 1 else right(x)
""",
        "says": "shares memory with `x`: who changes one changes both. The task says: a single rank",
    },
}
