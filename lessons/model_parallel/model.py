"""The model of this chapter: two transformer blocks that guess the next character of a text."""

from functools import partial

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from collectives import text

LETTERS, LENGTH, WIDTH, HEADS = 128, 32, 32, 8
# Two blocks, each with weights of 12 W x W and biases of 10 W; embeddings; norm and linear layer.
PARAMETERS = 2 * (12 * WIDTH**2 + 10 * WIDTH) + (2 * LETTERS + LENGTH + 2) * WIDTH + LETTERS


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter, self.place = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, letters):
        return self.letter(letters) + self.place.weight


class Block(nn.Module):
    mix = staticmethod(partial(scaled_dot_product_attention, is_causal=True))

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attention(self, x):
        parts = (part(x) for part in (self.query, self.key, self.value))
        q, k, v = (part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in parts)
        return self.mix(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x):
        x = x + self.out(self.attention(self.norm1(x)))
        return x + self.down(gelu(self.up(self.norm2(x))))


def network(device, blocks=2):
    torch.manual_seed(0)
    head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS))
    return nn.Sequential(Embedding(), *(Block() for _ in range(blocks)), head).double().to(device)


def batch(step, device):
    """Eight pieces of the text, and the character that follows each one: int64 [8, LENGTH] each."""
    letters = text(device)[step * 8 * LENGTH :][: 8 * LENGTH + 1]
    return letters[:-1].view(8, LENGTH), letters[1:].view(8, LENGTH)
