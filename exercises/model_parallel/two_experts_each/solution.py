from collections.abc import Callable

import torch
import torch.distributed as dist


def through_two(
    tokens: torch.Tensor, choice: torch.Tensor, weight: torch.Tensor, expert: Callable
) -> torch.Tensor:
    copies, whose = tokens.repeat_interleave(2), choice.flatten()
    sends = torch.bincount(whose, minlength=dist.get_world_size())
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends)
    sends, receives = sends.tolist(), receives.tolist()

    order = whose.argsort()
    arrived = tokens.new_empty(sum(receives))
    dist.all_to_all_single(arrived, copies[order], receives, sends)
    answers = torch.empty_like(copies)
    dist.all_to_all_single(answers, expert(arrived), sends, receives)

    by_copy = torch.empty_like(copies)
    by_copy[order] = answers
    return (weight * by_copy.view(-1, 2)).sum(1)
