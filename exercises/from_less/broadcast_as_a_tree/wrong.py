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
    "a chain": {
        "kind": "more than two ranks",
        "around": """\
def broadcast(x, src):
    n = dist.get_world_size()
    place = (dist.get_rank() - src) % n
    if place > 0:
        dist.recv(x, (dist.get_rank() - 1) % n)
    if place < n - 1:
        dist.send(x, (dist.get_rank() + 1) % n)
""",
        "says": "it sent 1 message; at least 2 are needed. The task says: the root",
    },
} | WRONG_BROADCASTS
