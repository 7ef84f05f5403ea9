"""The mixture of experts as its definition has it: what mixture.py must equal.

Every expert answers every token. The gate of a token is zero for all experts but its favourites,
and for those that have no room, too.
"""

from collections import Counter

import torch

from mixture import EXPERTS, Mixture, network_of_experts


class Dense(Mixture):
    """Its tokens come in `shares` of equal size. An expert has room for each of them anew."""

    room, shares = 1.25, 1

    def forward(self, x):
        tokens = x.flatten(0, -2)
        self.chances = torch.softmax(tokens @ self.router.weight.T, dim=1)
        order = self.chances.argsort(dim=1, descending=True)[:, : self.favourites]
        self.wanted, taken = order.flatten().tolist(), Counter()
        share, gate = len(self.wanted) // self.shares, torch.zeros_like(self.chances)
        for number, expert in enumerate(self.wanted):
            place = number // share, expert
            if taken[place] + 1 <= self.room * share / EXPERTS:
                taken[place] += 1
                gate[number // self.favourites, expert] = 1
        shares = range(self.shares)
        self.log.append([[taken[one, expert] for expert in range(EXPERTS)] for one in shares])
        answers = torch.stack([expert(tokens) for expert in self.experts.values()], dim=1)
        return ((gate * self.chances)[:, :, None] * answers).sum(1).view_as(x)

    def penalty(self):
        asked = torch.tensor([self.wanted.count(expert) for expert in range(EXPERTS)])
        chosen = asked.to(self.chances) / len(self.wanted)
        return EXPERTS * (chosen * self.chances).sum(1).mean()


def dense(device, shares=1):
    model = network_of_experts(device)
    for block in model[1:3]:
        block.mixture.__class__, block.mixture.shares = Dense, shares
    return model
