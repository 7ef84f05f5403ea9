"""The calls of the textbook algorithms, made with inputs of which the results are known."""

import pytest
import torch
import torch.distributed as dist

from collectives.algorithms import calls, table
from collectives.semantics import values

SUM = dist.ReduceOp.SUM


ALL = [(collective, name) for collective, known in table.ALGORITHMS.items() for name in known]


all_algorithms = pytest.mark.parametrize(
    ("collective", "name"), ALL, ids=["-".join(one) for one in ALL]
)


def some(collectives):
    chosen = [one for one in ALL if one[0] in collectives]
    return pytest.mark.parametrize(
        ("collective", "name"), chosen, ids=["-".join(one) for one in chosen]
    )


REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")


MOVES = ("broadcast", "all_gather", "gather", "scatter", "all_to_all")


def ranks(collective, name, largest):
    """The numbers of ranks that an algorithm can have, and ranks per machine for each."""
    for n in range(1, largest + 1):
        if table.ALGORITHMS[collective][name].power_of_two and n & (n - 1):
            continue
        machines = (1, 2, 3, n) if name == "hierarchical" else (n,)
        for per_node in sorted({size for size in machines if n % size == 0}):
            yield n, per_node


class Exact:
    """The inputs and closed forms of the package's own judge: exact in every dtype."""

    def __init__(self, n, length, op=SUM, dtype=torch.int64):
        self.arguments = n, (length,), dtype
        self.op, self.dtype = op, dtype

    def term(self, rank, start=0):
        return values.term(rank, *self.arguments, start)

    def sums(self, start=0):
        return values.reduced(label(self.op), *self.arguments, start)


def label(op):
    return next(name for name, one in dist.ReduceOp.RedOpType.__members__.items() if op == one)


def run(links, collective, name, root, data, per_node=None):
    """Make the call. Returns (what came, what should have come) as lists of tensors."""
    rank, n, op, function = links.rank, links.size, data.op, getattr(calls, collective)
    sums = data.sums

    def term(start=0, of=rank):
        return data.term(of, start)

    own = term()
    length = own.numel()

    def poisoned():  # neighbours in memory, as in all_gather_single
        return list(torch.full((n * length,), 77, dtype=own.dtype).tensor_split(n))

    if collective == "all_reduce":
        function(links, own, op, name, per_node)
        return [own], [sums()]
    if collective == "reduce":
        function(links, own, root, op, name)
        return [own], [sums() if rank == root else term()]
    if collective == "broadcast":
        function(links, own, root, name)
        return [own], [term(of=root)]
    every = [term(of=peer) for peer in range(n)]
    if collective == "all_gather":
        function(links, outputs := poisoned(), own, name)
        return [*outputs, own], [*every, term()]
    if collective == "gather":
        function(links, outputs := poisoned() if rank == root else None, own, root, name)
        return (outputs, every) if rank == root else ([own], [term()])
    (output,) = poisoned()[:1]
    inputs = [term(length * peer) for peer in range(n)]
    before = [tensor.clone() for tensor in inputs]
    if collective == "scatter":
        function(links, output, inputs, root, name)  # those of the other ranks do not count
        return [output, *inputs], [term(length * rank, of=root), *before]
    if collective == "reduce_scatter":
        function(links, output, inputs, op, name)
        return [output, *inputs], [sums(length * rank), *before]
    assert collective == "all_to_all"
    function(links, outputs := poisoned(), inputs, name)
    return [*outputs, *inputs], [*(term(length * rank, of=peer) for peer in range(n)), *before]
