"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`distance += 1` for `distance *= 2`": {
        "kind": "another number of ranks",
        "change": ("distance *= 2", "distance += 1"),
        "says": "it sent 3 messages; 2 are enough.",
    },
    "`while distance < n // 2` for `while distance < n`": {
        "kind": "the example",
        "change": ("while distance < n", "while distance < n // 2"),
        "says": "every rank: `marks` is as it was: ",
    },
    "partners by xor": {
        "kind": "a number of ranks that is no power of two",
        "around": """\
def barrier(marks):
    rank, n = dist.get_rank(), dist.get_world_size()
    distance = 1
    while distance < n:
        heard, peer = torch.empty_like(marks), rank ^ distance
        work = dist.isend(marks.clone(), peer)
        dist.recv(heard, peer)
        work.wait()
        torch.maximum(marks, heard, out=marks)
        distance *= 2
""",
        "says": "it sends to rank 3: the last rank is 2.",
    },
    "no message at all": {
        "kind": "what is counted",
        "around": """\
def barrier(marks):
    marks.fill_(1)
""",
        "says": "it sent 0 messages; at least 1 is needed",
    },
    "one round": {
        "kind": "more than two ranks",
        "change": ("while distance < n", "while distance < min(n, 2)"),
        "says": "the result is wrong.",
    },
    "it waits for its left neighbour, and believes the rest": {
        "kind": "a rank that comes late",
        "around": """\
def barrier(marks):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n > 1:
        work = dist.isend(marks.clone(), (rank + 1) % n)
        dist.recv(torch.empty_like(marks), (rank - 1) % n)
        work.wait()
    marks[:] = 1
""",
        "says": "The task says: only when it knows that every rank has called",
    },
}
