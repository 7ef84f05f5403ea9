"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import in_float32, keeps_the_first

WRONG = {
    "`range(n)` for `range(n - 1)`": {
        "kind": "the example",
        "change": ("range(n - 1)", "range(n)"),
        "says": "it sent 2 messages; 1 is enough.",
    },
    "`rows[rank]` for `rows[(rank - step) % n]`": {
        "kind": "more than two ranks",
        "change": ("rows[(rank - step) % n]", "rows[rank]"),
        "says": "The last right case: 2 ranks, 1000 elements,",
    },
    "`rows,` for `rows[(rank - step) % n],`": {
        "kind": "the example",
        "change": ("rows[(rank - step) % n], ", "rows, "),
        "says": "died",
    },
    "it passes on all rows, not the newest one": {
        "kind": "the example",
        "change": (
            "dist.isend(rows[(rank - step) % n], (rank + 1) % n)\n        dist.recv(rows[(rank - step - 1) % n], (rank - 1) % n)\n        work.wait()",
            "dist.isend(rows.clone(), (rank + 1) % n)\n        whole = torch.empty_like(rows)\n        dist.recv(whole, (rank - 1) % n)\n        work.wait()\n        rows[(rank - step - 1) % n] = whole[(rank - step - 1) % n]",
        ),
        "says": "it sent 32 bytes; 16 are enough",
    },
    "it keeps the first result": keeps_the_first("ring_all_gather(x)"),
    "it computes in float32": in_float32("ring_all_gather(x)"),
    "the left neighbour is the right one": {
        "kind": "more than two ranks",
        "change": ("(rank - 1) % n", "(rank + 1) % n"),
        "says": "it hangs",
    },
    "it rotates the rows": {
        "kind": "more than two ranks",
        "change": ("rows[(rank - step - 1) % n]", "rows[(rank + step + 1) % n]"),
        "says": "the result is wrong.",
    },
    "each rank sends its own tensor to all others": {
        "kind": "more than two ranks",
        "around": """\
def ring_all_gather(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = [x.clone() if r == rank else torch.empty_like(x) for r in range(n)]
    others = [r for r in range(n) if r != rank]
    works = [dist.isend(x, r) for r in others] + [dist.irecv(rows[r], r) for r in others]
    for work in works:
        work.wait()
    return torch.cat(rows)
""",
        "says": "The task says: all to its right neighbour",
    },
}
