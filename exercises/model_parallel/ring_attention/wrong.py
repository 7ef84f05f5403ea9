"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

WRONG = {
    "it adds the blocks' results without weights": {
        "kind": "the example",
        "change": (
            "result * (log_sum - total).exp() + new * (new_log_sum - total).exp()",
            "result + new",
        ),
        "says": "every rank: it adds the results of the blocks without weights.",
    },
    "it takes the mean of the blocks' results": {
        "kind": "the example",
        "change": (
            "result * (log_sum - total).exp() + new * (new_log_sum - total).exp()",
            "(result + new) / 2",
        ),
        "says": "every rank: it takes the mean of the blocks: their weights differ.",
    },
    "`return attend(query, key, value)[0]` for `return result`": {
        "kind": "the example",
        "change": ("    return result", "    return attend(query, key, value)[0]"),
        "says": "every rank: the result comes from this rank's keys alone.",
    },
    "it takes exp of a large log_sum": {
        "kind": "another length",
        "change": (
            "        total = torch.logaddexp(log_sum, new_log_sum)\n",
            "        total = (log_sum.exp() + new_log_sum.exp()).log()\n",
        ),
        "says": "large scores, run 4: every rank: `exp` of a large log_sum is infinite: subtract first.",
    },
    "without `log_sum = total`": {
        "kind": "more than two ranks",
        "change": ("        log_sum = total\n", ""),
        "says": "the result is wrong. The last right case: 2 ranks, 50",
    },
    "`range(n)` for `range(n - 1)`": {
        "kind": "the example",
        "change": ("range(n - 1)", "range(n)"),
        "says": "every rank: this rank's own block counts twice.",
    },
    "the first two blocks": {
        "kind": "more than two ranks",
        "change": ("range(n - 1)", "range(min(1, n - 1))"),
        "says": "the result is wrong.",
    },
    "it keeps the first result": keeps_the_first(
        "ring_attention(query, key, value)", says="it sent 0 messages; at least 1 is needed"
    ),
    "it collects all blocks": {
        "kind": "more than two ranks",
        "around": """\
def ring_attention(query, key, value):
    rank, n = dist.get_rank(), dist.get_world_size()
    blocks = [torch.stack([key, value])]
    for _ in range(n - 1):
        work = dist.isend(blocks[-1], (rank + 1) % n)
        blocks.append(torch.empty_like(blocks[0]))
        dist.recv(blocks[-1], (rank - 1) % n)
        work.wait()
    keys, values = torch.cat(blocks, dim=1)
    return (query @ keys.mT).softmax(-1) @ values
""",
        "says": "The task says: no rank may hold all of them",
    },
    "it collects copies of all blocks": {
        "kind": "more than two ranks",
        "around": """\
def ring_attention(query, key, value):
    rank, n = dist.get_rank(), dist.get_world_size()
    blocks = [torch.stack([key, value])]
    arrived = torch.empty_like(blocks[0])
    for _ in range(n - 1):
        work = dist.isend(blocks[-1], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        work.wait()
        blocks.append(arrived.clone())
    keys, values = torch.cat(blocks, dim=1)
    return (query @ keys.mT).softmax(-1) @ values
""",
        "says": "The task says: no rank may hold all of them",
    },
}
