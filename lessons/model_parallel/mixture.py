"""The model with experts. dense.py has its definition, in one process."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from model import WIDTH, Block, network

EXPERTS = 8


class Mixture(nn.Module):
    """Each token goes to the experts that its router likes best, those of them that have room.

    An expert takes as many tokens as it would get if all experts got equally many, times `room`.
    The others get zeros for an answer.
    """

    favourites, room = 1, 1.25

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({str(number): expert() for number in range(EXPERTS)})
        self.log = []  # of each forward pass: by expert, how many tokens it took

    def forward(self, x):
        tokens = x.flatten(0, -2)
        self.chances = self.router(tokens).softmax(-1)
        best, chosen = self.chances.topk(self.favourites)
        self.chosen = chosen.flatten()  # the favourites of token 0, of token 1, ...
        hits = one_hot(self.chosen, EXPERTS)
        place = (hits.cumsum(0) * hits).sum(-1)  # 1 for the first token of its expert
        is_taken = place <= self.room * len(hits) / EXPERTS
        self.log.append((hits * is_taken[:, None]).sum(0).tolist())
        copies = tokens.repeat_interleave(self.favourites, dim=0)
        answers = self.exchanged(copies, self.chosen.where(is_taken, -1))
        answers = answers.view(*best.shape, WIDTH)
        return (best[..., None] * answers).sum(1).view_as(x)

    def asked(self):
        """By expert, how many tokens want to go there."""
        return torch.bincount(self.chosen, minlength=EXPERTS)

    def penalty(self):
        """1 if all experts are asked equally often, and EXPERTS if one is asked by all tokens."""
        asked = self.asked()
        return EXPERTS * (asked / asked.sum() * self.chances.mean(0)).sum()

    def exchanged(self, tokens, whose):
        """The answer to each token of the expert with this number. -1 is nobody."""
        return self.answered(tokens, whose)

    def answered(self, tokens, whose):
        answers = torch.zeros_like(tokens)
        for number, expert in self.experts.items():
            mine = whose == int(number)
            answers[mine] = expert(tokens[mine])
        return answers


def expert():
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


class ExpertBlock(Block):
    def __init__(self):
        super().__init__()
        del self.up, self.down
        self.mixture = Mixture()

    def forward(self, x):
        x = x + self.out(self.attention(self.norm1(x)))
        return x + self.mixture(self.norm2(x))


def network_of_experts(device):
    model = network(device)
    for number in (1, 2):
        model[number] = ExpertBlock().double().to(device)
    return model


def keep_experts(model, numbers):
    """Drop the others."""
    for block in model[1:3]:
        for number in set(range(EXPERTS)) - set(numbers):
            del block.mixture.experts[str(number)]


def loss_of(model, letters, following, factor=0.0):
    loss = cross_entropy(model(letters).flatten(0, 1), following.flatten())
    return loss + factor * sum(block.mixture.penalty() for block in model[1:3]) if factor else loss


def alone(model, letters, following, factor=0.0):
    loss_of(model, letters, following, factor).backward()


def tokens_of(model, rank, experts):
    """What a rank with these experts sends, what it receives, and how much of it is its own.

    Each is a list of numbers of tokens, one for each forward pass of a mixture in one process.
    """
    taken = torch.tensor([log for block in model[1:3] for log in block.mixture.log])
    found = taken[:, rank], taken[:, :, experts].flatten(1), taken[:, rank, experts]
    return [one.sum(1).tolist() for one in found]
