"""Double binary tree (Sanders, Speck, Träff): unlike in one tree, no rank only ever receives.

Half of the tensor goes down one binary tree, half down another, whose inner ranks are the leaves of
the first. So every rank receives and sends at full speed. broadcast, 5 ranks:

    first half          second half
         0                   0
         4                   1
       2                       3
     1   3                    2 4

The links have two colours: no rank sends, or receives, twice in one colour. Even steps use the
links of one colour, odd steps those of the other: in each step a rank sends one chunk and receives
one. That is the bandwidth of a chain, and the first chunk has reached all ranks after at most
2 log2(n) steps, with log2 rounded up.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from collectives.algorithms.schedule import Number, Rounds, Schedule, Step, backwards, when


def broadcast(rank: Number, n: int, pieces: int) -> Iterator[Step]:
    """Of an even number of pieces: the first half of them goes down the first tree."""
    chunks, trees = pieces // 2, two_trees(n)
    links = [_links(trees, rank, colour) for colour in (0, 1)]
    for step in range(trees.first.max() + 2 * chunks - 1 if n > 1 else 0):
        link = links[step % 2]
        send, receive = (step - link.sends_from) // 2, (step - link.receives_from) // 2
        yield Step(
            to=when((link.child > 0) & (send >= 0) & (send < chunks), link.child),
            send=link.child_tree * chunks + send,
            source=when((rank > 0) & (receive >= 0) & (receive < chunks), link.parent),
            receive=link.tree * chunks + receive,
        )


def reduce(rank: Number, n: int, pieces: int) -> Schedule:
    return backwards(broadcast(rank, n, pieces), reduce=True)


def all_reduce(rank: Number, n: int, pieces: int) -> Iterator[Step | Rounds]:
    yield from reduce(rank, n, pieces)
    yield from broadcast(rank, n, pieces)


class Trees(NamedTuple):
    """Arrays [tree, rank] of the link to a rank, and [colour, rank] of the link from it."""

    parent: np.ndarray
    colour: np.ndarray
    first: np.ndarray  # the step in which the first chunk arrives
    child: np.ndarray  # 0: the rank sends nothing in this colour
    child_tree: np.ndarray


class TreeLinks(NamedTuple):
    """The two links of one colour at a rank, and the steps from which on they carry chunks."""

    tree: Number  # in which the rank receives
    parent: Number
    receives_from: Number
    child_tree: Number
    child: Number  # 0: the rank sends nothing
    sends_from: Number


def _links(trees: Trees, rank: Number, colour: int) -> TreeLinks:
    tree = np.where(trees.colour[0] == colour, 0, 1)[rank]
    child, child_tree = trees.child[colour][rank], trees.child_tree[colour][rank]
    return TreeLinks(
        tree,
        trees.parent[tree, rank],
        trees.first[tree, rank],
        child_tree,
        child,
        trees.first[child_tree, child],
    )


@functools.cache
def two_trees(n: int) -> Trees:
    parent = _parents(n)
    colour = _colours(parent)
    first = np.full((2, n), -1)
    for _ in range(n.bit_length()):  # from the root down: one level more each time
        earliest = np.take_along_axis(first, parent, axis=1) + 1
        first[:, 1:] = (earliest + (earliest + colour) % 2)[:, 1:]
    child, child_tree = np.zeros((2, n), int), np.zeros((2, n), int)
    for tree in (0, 1):
        link = colour[tree, 1:], parent[tree, 1:]
        child[link], child_tree[link] = np.arange(1, n), tree
    return Trees(parent, colour, first, child, child_tree)


def _parents(n: int) -> np.ndarray:
    """Rank 0 is the root. The others are the places 1 to n - 1 of a binary tree, in order.

    Odd places are its leaves. So the second tree has the first's even ranks at odd places: in
    reverse order, or shifted by one if there is an odd number of them.
    """
    m = n - 1
    ranks = np.arange(n)
    other = np.where(ranks == 0, 0, ranks % m + 1 if m % 2 else n - ranks)
    parent = np.zeros((2, n), int)
    for tree, place in enumerate((ranks, other)):
        lowest = place & -place
        above = (place ^ lowest) | (lowest << 1)
        above = np.where(above <= m, above, place ^ lowest)
        rank_at = np.argsort(place)
        parent[tree] = rank_at[above]
    return parent


def _colours(parent: np.ndarray) -> np.ndarray:
    """Of the link to each rank in each tree.

    Walk along the links: from one that comes to a rank to the other one that does, and from there
    to the other one that leaves the same parent. That link must have the colour of the first one.
    All walks are taken at once, each time twice as far: they end, or come back to their beginning.
    """
    n = parent.shape[1]
    links = np.arange(2 * n)
    beside = (links + n) % (2 * n)  # the link to the same rank, in the other tree
    leaving = np.argsort(np.where(links % n, parent.reshape(-1), -1), kind="stable")[2:]
    left, right = leaving[:-1], leaving[1:]  # neighbours here leave the same parent, or not
    pairs = parent.reshape(-1)[left] == parent.reshape(-1)[right]
    sibling = np.full(2 * n, -1)
    sibling[left[pairs]], sibling[right[pairs]] = right[pairs], left[pairs]
    step = np.where(sibling[beside] >= 0, sibling[beside], links)
    end, least = step, np.minimum(links, step)
    for _ in range(n.bit_length()):
        least, end = np.minimum(least, least[end]), end[end]
    group = np.where(step[end] == end, end, least)  # a number that all links of a walk share
    colours: np.ndarray = (group > group[beside]).astype(int).reshape(2, n)
    return colours
