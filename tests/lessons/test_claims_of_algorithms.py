"""What the lessons on algorithms claim, about two sentences of each, and for each the smallest edit
that makes it false: the proof of the lesson notices every one.
"""

import pytest
from planted import Planted, by_proof, unnoticed

from collectives.course import files


def edit(name: str, function: str, old: str, new: str, says: str = "") -> Planted:
    return Planted(files.find(name), old, new, says, function)


ALGORITHMS = {
    "every rank sends to its right neighbour": edit(
        "algorithms/ring",
        "ring_all_reduce",
        "right, left = (rank + 1) % n, (rank - 1) % n",
        "right, left = (rank - 1) % n, (rank + 1) % n",
    ),
    "the busiest rank sends 2 (n - 1) / n tensors": edit(
        "algorithms/ring",
        "uneven_ring",
        "list(x.tensor_split(world_size))",
        "[x, *[x[:0]] * (world_size - 1)]",
    ),
    "one ring returns wrong sums": edit(
        "algorithms/wrong_rings",
        "tutorials_all_reduce",
        "total += (recv, send)[k % 2]",
        "buffers[leaving].copy_(send if k == 0 else buffers[leaving]); total += buffers[arriving]",
    ),
    "the other ring sends too much": edit(
        "algorithms/wrong_rings",
        "whole_tensors",
        "exchange(passing, right, arriving, left)",
        "pass",
    ),
    "a pair exchanges everything": edit(
        "algorithms/doubling",
        "recursive_doubling",
        "exchange(rows, arriving, rank ^ distance)",
        "exchange(rows[:, :2], arriving[:, :2], rank ^ distance)",
    ),
    "a pair exchanges halves": edit(
        "algorithms/doubling",
        "halving_doubling",
        "exchange(rows[given], arriving, rank ^ distance)",
        "exchange(rows, whole := torch.empty_like(rows), rank ^ distance)\n"
        "            arriving = whole[kept : kept + distance]",
    ),
    "the ranks that have the data double in each step": edit(
        "algorithms/tree",
        "down",
        """        for distance in reversed(distances(n)):
            gives = rank % (2 * distance) == 0 and rank + distance < n
            if gives:
                dist.send(x, rank + distance)
            if rank % (2 * distance) == distance:
                dist.recv(x, rank - distance)
            has_it = rank % distance == 0
""",
        """        for distance in range(1, n):
            gives = rank == 0
            if gives:
                dist.send(x, rank + distance)
            if rank == distance:
                dist.recv(x, 0)
            has_it = rank <= distance
""",
    ),
    "a reduce goes up the tree": edit(
        "algorithms/tree",
        "up",
        """        for distance in distances(n):
            gives = rank % (2 * distance) == distance
            if gives:
                dist.send(x, rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < n:
                arriving = torch.empty_like(x)
                dist.recv(arriving, rank + distance)
                x += arriving
            steps.add([x], sent=0, to=rank - distance if gives else None)
""",
        """        for last in reversed(range(1, n)):
            gives = rank == last
            if gives:
                dist.send(x, rank - 1)
            elif rank == last - 1:
                arriving = torch.empty_like(x)
                dist.recv(arriving, last)
                x += arriving
            steps.add([x], sent=0, to=rank - 1 if gives else None)
""",
    ),
    "two trees at once": edit(
        "algorithms/tree", "double_tree", 'x, 0, "double_tree"', 'x, 0, "binomial_tree"'
    ),
    "messages carry more in each step": edit(
        "algorithms/bruck",
        "distances",
        "[1 << k for k in range((n - 1).bit_length())]",
        "list(range(1, n))",
    ),
    "every rank talks to another one in each step": edit(
        "algorithms/bruck",
        "pairwise",
        """        for shift in range(1, n):
            to, source = (rank + shift) % n, (rank - shift) % n
            got[source] = torch.empty_like(give[to])
            exchange(give[to], to, got[source], source)
            steps.add([*give, *got], sent=to, to=to, at=n + rank)
""",
        """        for to in range(n):
            for source in range(n):
                if rank == source != to:
                    torch.distributed.send(give[to], to)
                    steps.add([*give, *got], sent=to, to=to, at=n + rank)
                if rank == to != source:
                    got[source] = torch.empty_like(give[to])
                    torch.distributed.recv(got[source], source)
""",
    ),
    "each rank of a machine takes half of the work": edit(
        "algorithms/hierarchical", "groups", "size = 2 if n % 2 == 0 else 1", "size = 1"
    ),
    "only the leaders talk between machines": edit(
        "algorithms/hierarchical",
        "leaders_only",
        "        if rank == leader:\n            dist.all_reduce(x, group=leaders)",
        "        dist.all_reduce(x if rank == leader else torch.zeros_like(x))",
    ),
    "a message takes latency and bytes": edit(
        "algorithms/which_one_when", "seconds", "Hop(latency, bandwidth)", "Hop(0.0, bandwidth)"
    ),
    "one call has fewer messages than a hundred": edit(
        "algorithms/which_one_when",
        "packed",
        'calls.all_reduce(links, flat, dist.ReduceOp.SUM, "recursive_doubling")',
        "for x in flat.split(10):\n"
        '            calls.all_reduce(links, x, dist.ReduceOp.SUM, "recursive_doubling")',
    ),
    "in one order every rank has the same bits": edit(
        "algorithms/same_bits",
        "same_bits",
        "own.clone(), all_numbers[0].clone()",
        "own.clone(), all_numbers[rank].clone()",
    ),
    "each of five algorithms has an order of its own": edit(
        "algorithms/same_bits",
        "five_algorithms",
        "x, dist.ReduceOp.SUM, name)",
        'x, dist.ReduceOp.SUM, "ring")',
    ),
    "a row has other bits in a larger batch": edit(
        "algorithms/every_size",
        "one_more_row",
        "dist.all_reduce(x)",
        "[dist.all_reduce(row) for row in x]",
    ),
    "halving and doubling sends fewer bytes": edit(
        "algorithms/every_size",
        "pinned",
        "dist.ReduceOp.SUM, name)",
        'dist.ReduceOp.SUM, name if name == "ring" else "recursive_doubling")',
    ),
    "in shared memory nothing is sent": edit(
        "algorithms/backend_in_python", "shared_memory", "x.copy_(rows[0])", "dist.all_reduce(x)"
    ),
    "DDP trains on by_hand": edit(
        "algorithms/backend_in_python",
        "ddp_by_hand",
        'dist.new_group(backend="by_hand")',
        'dist.new_group(backend="gloo")',
    ),
    "FSDP2 trains on by_hand": edit(
        "algorithms/backend_in_python",
        "fsdp_by_hand",
        'dist.new_group(backend="by_hand")',
        'dist.new_group(backend="gloo")',
    ),
}


@pytest.mark.slow
def test_an_edit_that_makes_a_claim_on_algorithms_false_is_noticed():
    found = unnoticed(list(ALGORITHMS.values()), by_proof)
    green = [claim for claim, fault in ALGORITHMS.items() if fault in found]
    assert green == []
