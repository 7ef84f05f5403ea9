"""1F1B: one forward, one backward

A pipeline has n ranks, and a step has m micro-batches. Return the passes of a rank in the order of
1F1B: "F2" is the forward pass of micro-batch 2, and "B2" its backward pass.

The last rank begins with F0 and B0, and each rank before it makes one more forward pass before B0.
Then backward and forward passes alternate, until no forward pass is left. So no rank waits longer
than it must, and rank r keeps at most n - r micro-batches.

    n 3, m 4
    rank  returned
    0     ["F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"]
    1     ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"]
    2     ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"]
"""


def order(rank: int, n: int, m: int) -> list[str]:
    raise NotImplementedError("TODO: about seven lines")
