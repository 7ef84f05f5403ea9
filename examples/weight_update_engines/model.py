"""What trainer and engine both know: a small language model, how an engine cuts it, and its hash.

A real engine has its own code for your model, with fused and padded tensors. This one has the
trainer's names, so that the two can be compared tensor by tensor, and to the last bit.
"""

import hashlib

import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

LETTERS, HEADS = 48, 4


class Network(nn.Module):
    """A layer of attention and one of an MLP. The head is tied: it is the embedding."""

    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, width)
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.head = nn.Linear(width, LETTERS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return log_probs(dict(self.named_parameters(remove_duplicate=False)), tokens)


def normed(weights, x):
    return layer_norm(x, x.shape[-1:], weights["norm.weight"], weights["norm.bias"])


def log_probs(weights, tokens, heads=HEADS, cache=None, add_up=lambda x: x):
    """Of each letter after these. An engine's rank has some heads, and adds up over its ranks. The
    cache holds keys and values of each text that was seen, by the weights of that time.
    """
    cache, held = {} if cache is None else cache, []
    for end in range(1, len(tokens) + 1):
        text = tuple(tokens[:end])
        if text not in cache:
            x = normed(weights, weights["embed.weight"][text[-1]])
            cache[text] = [
                (x @ weights[f"{one}.weight"].T).view(heads, -1) for one in ("key", "value")
            ]
        held.append(cache[text])
    keys, values = (torch.stack(one, 1) for one in zip(*held, strict=True))  # [head, token, depth]
    x = weights["embed.weight"][tokens[-1]]
    query = (normed(weights, x) @ weights["query.weight"].T).view(heads, 1, -1)
    mixed = scaled_dot_product_attention(query, keys, values).flatten()
    x = x + add_up(mixed @ weights["out.weight"].T)
    hidden = gelu(normed(weights, x) @ weights["up.weight"].T + weights["up.bias"])
    x = x + add_up(hidden @ weights["down.weight"].T)
    return (normed(weights, x) @ weights["head.weight"].T).log_softmax(-1)


CUT = {"query": 0, "key": 0, "value": 0, "up": 0, "out": 1, "down": 1}  # the others are whole


def cut(name, tensor, rank, tp):
    """The slice of an engine's rank: rows or columns of a matrix, or the whole of it."""
    dimension = CUT.get(name.split(".")[0])
    return tensor if dimension is None else tensor.tensor_split(tp, dimension)[rank]


def held_dtype(name):
    """In what an engine holds it, and what travels: norms in float32, all else in bfloat16."""
    return torch.float32 if name.startswith("norm") else torch.bfloat16


def as_bytes(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def sha256(tensor):
    """How vLLM hashes a tensor. SGLang takes the first 16 digits (on GPUs it has another hash)."""
    return hashlib.sha256(as_bytes(tensor).cpu().numpy()).hexdigest()
