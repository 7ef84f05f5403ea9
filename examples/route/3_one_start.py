"""3 of 9: before the first step, every rank takes the parameters and the buffers of rank 0.

Start it by `torchrun --nproc-per-node 2 3_one_start.py`. Programs 1 to 4 use the CPU.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

EPOCHS, BATCH = 3, 125


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mix", torch.randn(64, 64) / 8)  # random, and not trained
        layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        self.layers = nn.Sequential(*layers)

    def forward(self, images):
        return self.layers(images @ self.mix)


def digits():
    """1,500 images of digits to train with, and 297 others. Put your own data here."""
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    return [TensorDataset(images[a:b] / 16, labels[a:b]) for a, b in ((0, 1500), (1500, 1797))]


def main():
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # as if it had none: every process begins with other numbers
    data, _ = digits()
    model = Network().double()
    for tensor in model.state_dict().values():  # its parameters and its buffers
        dist.broadcast(tensor, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        order = torch.randperm(1500, generator=torch.Generator().manual_seed(epoch))
        model.train()
        for batch in order.split(BATCH):
            images, labels = data[batch[rank::n]]  # every n-th image of the batch
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            (loss * len(labels) * n / len(batch)).backward()  # n times this rank's share
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)  # the sum of all ranks ...
                parameter.grad /= n  # ... becomes their mean
            optimizer.step()
        weights = sum(one.sum().item() for one in model.parameters())
        print(f"rank {rank}, epoch {epoch}: loss {loss.item():.4f}, weights {weights:.6f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
