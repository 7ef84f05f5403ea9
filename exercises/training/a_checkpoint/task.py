"""A checkpoint

`train` stops after `stop` steps, and a new Trainer continues from the checkpoint, of which each
rank has its own. At the end the weights must be, bit for bit, those of a training that never
stopped. Write `state` and `load`: on what does the next step depend?

    rank  seed  steps  stop  returned
    0     1     5      3     the same as with stop 0
    1     2     5      3     the same as with stop 0

You may call all_reduce, and no other collective.
"""

import io

import torch
import torch.distributed as dist


class Trainer:
    def __init__(self, seed: int):
        self.weights = torch.zeros(3, dtype=torch.float64)
        self.momentum = torch.zeros(3, dtype=torch.float64)
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = 0

    def step(self) -> None:
        gradient = torch.randint(-4, 5, (3,), generator=self.generator).double()
        dist.all_reduce(gradient)
        self.momentum = self.momentum / 2 + gradient
        self.weights -= self.momentum / 2**self.steps  # the rate falls
        self.steps += 1

    def state(self) -> dict:
        raise NotImplementedError("TODO: about six lines")

    def load(self, state: dict) -> None:
        raise NotImplementedError("TODO: about four lines")


def train(seed: int, steps: int, stop: int) -> torch.Tensor:
    before = Trainer(seed)
    while before.steps < stop:
        before.step()
    file = io.BytesIO()
    torch.save(before.state(), file)

    file.seek(0)
    after = Trainer(seed=0)
    after.load(torch.load(file))
    while after.steps < steps:
        after.step()
    return after.weights
