"""Ring attention

Each rank has the queries, keys and values of its part of a text. Return what attention gives for
its queries and the keys and values of all ranks: `softmax(query @ key.mT) @ value`, without a mask.
The blocks of keys and values travel around the ring, because no rank may hold all of them. `attend`
gives the result for one block, which is a mean of its values. Another block has a larger or a
smaller sum of weights, so its mean counts more or less.

    rank  query  key         value   returned
    0     [[1]]  [[log(1)]]  [[10]]  [[17.5]]   (1 * 10 + 3 * 20) / (1 + 3)
    1     [[2]]  [[log(3)]]  [[20]]  [[19.0]]   (1 * 10 + 9 * 20) / (1 + 9)

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def attend(query, key, value):
    """The result for these keys alone, and the logarithm of the sum by which softmax divides."""
    scores = query @ key.mT
    log_sum = scores.logsumexp(-1, keepdim=True)
    return (scores - log_sum).exp() @ value, log_sum


def ring_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("TODO: about fourteen lines")
