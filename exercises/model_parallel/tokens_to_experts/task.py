"""Tokens to their experts, and back

Each rank has one expert, and some tokens. `choice` names the rank of the expert that each token
needs. Send the tokens there, let `expert` answer those that arrive, send the answers back, and
return them in the order of the tokens. A rank may have no tokens, and an expert none to answer.

    rank  tokens            choice        expert     returned
    0     [1, 2, 3]         [1, 1, 0]     adds 1000  [2001, 2002, 1003]
    1     [11, 12, 13, 14]  [1, 1, 1, 0]  adds 2000  [2011, 2012, 2013, 1014]

`dist.all_to_all_single(output, input, output_sizes, input_sizes)` sends unequal parts: the lists
say how many elements come from each rank, and how many go to each rank.

You may call all_to_all_single, and no other collective.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist


def through_experts(tokens: torch.Tensor, choice: torch.Tensor, expert: Callable) -> torch.Tensor:
    raise NotImplementedError("TODO: about twelve lines")
