"""Two experts for each token

Each rank has one expert and some tokens. Row i of `choice` names the ranks of the two experts that
token i needs, and row i of `weight` says how much the answer of each one counts. Send the tokens
there, let `expert` answer those that arrive, send the answers back, and return for each token the
sum of its two answers, each times its weight. No token is dropped, however many an expert gets.

    rank  tokens  choice            weight                      expert   returned
    0     [1, 2]  [[1, 0], [1, 0]]  [[0.5, 0.5], [0.25, 0.75]]  adds 10  [16.0, 14.5]
    1     [3, 4]  [[1, 0], [0, 1]]  [[0.5, 0.5], [1.0, 0.0]]    adds 20  [18.0, 14.0]

`dist.all_to_all_single(output, input, output_sizes, input_sizes)` sends unequal parts: the lists
say how many elements come from each rank, and how many go to each rank.

You may call all_to_all_single, and no other collective.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist


def through_two(
    tokens: torch.Tensor, choice: torch.Tensor, weight: torch.Tensor, expert: Callable
) -> torch.Tensor:
    raise NotImplementedError("TODO: about fourteen lines")
