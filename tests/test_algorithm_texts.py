"""What the algorithms' docstrings and docs/algorithms.md say is what the schedules do."""

import itertools
import re

from collectives.algorithms import (
    binomial_tree,
    bruck,
    chain,
    direct,
    dissemination,
    double_tree,
    halving_doubling,
    hierarchical,
    recursive_doubling,
    ring,
)
from collectives.algorithms.lockstep import messages, play
from tools.docs import ROOT

# Rank 0 holds 1 2 3 4, rank 1 ten times that, ...
WORKED = [[(piece + 1) * 10**rank for piece in range(4)] for rank in range(4)]


def played(schedule, memory=WORKED):
    """For each step: its messages, what every rank held before, and what it holds after."""
    found = messages(schedule, len(memory), len(memory[0]))
    held = [memory, *play(found, memory)]
    return list(zip(found, held[:-1], held[1:], strict=True))


def rows(module, first="step|before"):
    """The numbers in the lines of a docstring's table, which begin with a step."""
    lines = (line.strip() for line in module.__doc__.splitlines())
    return [ints(line) for line in lines if re.match(rf"\d|(?:{first}) ?\d?\W", line)]


def ints(text):
    return [int(number) for number in re.findall(r"\d+", text)]


def arrows(text):
    """[[(0, 4)], [(0, 2), (4, 6)]] for each step of a docstring."""
    found = re.split(r"step \d: ", text)[1:]
    return [[tuple(map(int, pair)) for pair in re.findall(r"(\d) -> (\d)", one)] for one in found]


def sent(schedule, n):
    found = messages(schedule, n, 1)
    return [[(message.source, message.to) for message in step] for step in found]


def test_direct_and_binomial_tree():
    assert arrows(direct.__doc__) == sent(lambda rank: direct.broadcast(rank, 4), 4)
    assert arrows(binomial_tree.__doc__) == sent(lambda rank: binomial_tree.broadcast(rank, 8), 8)


def test_chain():
    table = [line.split() for line in chain.__doc__.splitlines() if re.match(r" +\d ", line)]
    found = messages(lambda rank: chain.broadcast(rank, 4, 3), 4, 3)
    assert table == [
        [str(k), *("abc"[message.sent[0]] for message in step)] for k, step in enumerate(found)
    ]


def test_ring():
    assert rows(ring)[-3:] == [
        [k, *itertools.chain(*((before[m.source][m.sent[0]], m.sent[0]) for m in step))]
        for k, (step, before, _) in enumerate(played(lambda rank: ring.reduce_scatter(rank, 4)))
    ]


def test_recursive_doubling():
    found = played(lambda rank: recursive_doubling.all_reduce(rank, 4), [row[:1] for row in WORKED])
    pairs = [
        [rank for m in step if m.source < m.to for rank in (m.source, m.to)] for step, *_ in found
    ]
    assert rows(recursive_doubling) == [
        [row[0] for row in WORKED],
        *([k, *(row[0] for row in after), *pairs[k]] for k, (_, _, after) in enumerate(found)),
    ]


def test_halving_doubling():
    found = played(lambda rank: halving_doubling.reduce_scatter(rank, 4))
    first, second, third = rows(halving_doubling)
    assert first == [number for row in WORKED for number in row]
    for k, row in ((0, second), (1, third)):
        step, _, after = found[k]
        kept = [after[rank][piece] for rank in range(4) for piece in received(step, rank)]
        pairs = [rank for m in step if m.source < m.to for rank in (m.source, m.to)]
        assert row == [k, *kept, *pairs]


def received(step, rank):
    return next(sorted(message.received) for message in step if message.to == rank)


def test_bruck():
    found = played(
        lambda rank: bruck.all_gather(rank, 5),
        [[piece if piece == rank else None for piece in range(5)] for rank in range(5)],
    )
    assert rows(bruck) == [
        [0],
        *(
            [k, *(x for x in after[0] if x is not None), next(m.source for m in step if m.to == 0)]
            for k, (step, _, after) in enumerate(found)
        ),
    ]


def test_dissemination():
    distances = [step[0][1] for step in sent(lambda rank: dissemination.barrier(rank, 5), 5)]
    assert [ints(line) for line in re.findall(r"step \d: r -> r \+ \d", dissemination.__doc__)] == [
        [k, distance] for k, distance in enumerate(distances)
    ]


def test_double_tree():
    depth = {}
    parent = double_tree.two_trees(5).parent
    for tree in (0, 1):
        depth[tree] = [0] * 5
        for rank in range(1, 5):
            above, depth[tree][rank] = parent[tree, rank], 1
            while above:
                above, depth[tree][rank] = parent[tree, above], depth[tree][rank] + 1
    levels = [
        [rank for tree in (0, 1) for rank in range(5) if depth[tree][rank] == level]
        for level in range(4)
    ]
    drawing = double_tree.__doc__.partition("second half\n")[2].partition("\n\n")[0]
    assert [ints(line) for line in drawing.splitlines()] == levels
    # No rank but the root is an inner one of both.
    assert not set(parent[0, 1:]) & set(parent[1, 1:]) - {0}


def test_the_first_chunk_has_reached_all_ranks_after_twice_log2_steps():
    for n in range(2, 300):
        assert double_tree.two_trees(n).first.max() + 1 <= 2 * (n - 1).bit_length()


def test_hierarchical():
    steps = sent(lambda rank: hierarchical.all_reduce(rank, 4, 2), 4)
    inside, *between, again = steps
    assert inside == [(1, 0), (3, 2)]
    assert again == [(0, 1), (2, 3)]
    assert {pair for step in between for pair in step} == {(0, 2), (2, 0)}
    drawn = [line for line in hierarchical.__doc__.splitlines() if line.startswith("    ")]
    assert [re.findall(r"(\d) (?:->|<->) (\d)", line) for line in drawn] == [
        [("1", "0"), ("3", "2")],
        [("0", "2")],
        [("0", "1"), ("2", "3")],
    ]


# docs/algorithms.md


def test_the_program_in_the_page_prints_what_its_comment_says(capsys):
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(program, "docs/algorithms.md", "exec"), {"__name__": "program"})
    assert capsys.readouterr().out.strip() == program.strip().rpartition("# ")[2]
