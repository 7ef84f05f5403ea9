"""Copies of one model train together, each on its own samples.

    torchrun --nproc-per-node 2 examples/first_training.py

It needs torch, and nothing of this repository. Each copy takes a GPU of its own if this machine has
enough of them, and else the CPU.
"""

import torch
import torch.distributed as dist

dist.init_process_group()  # meet the other copies of this program
rank, n = dist.get_rank(), dist.get_world_size()
torch.set_default_device(f"cuda:{rank}" if torch.cuda.device_count() >= n else "cpu")

x = torch.arange(1.0, 9.0)[rank::n]  # of 8 samples, this copy takes every n-th
y = 3 * x  # so the weight has to become 3
weight = torch.tensor([1.0 + rank], requires_grad=True)  # each copy has another first weight ...
dist.broadcast(weight.data, src=0)  # ... and now all have that of rank 0

for step in range(1, 3):
    weight.grad = None
    loss = ((weight * x - y) ** 2).mean()
    loss.backward()
    own = weight.grad.item()
    dist.all_reduce(weight.grad)  # add up the gradients of all copies ...
    weight.grad /= n  # ... and take their mean
    weight.data -= 0.01 * weight.grad  # the same step on every copy
    mean, new = weight.grad.item(), weight.item()
    print(f"rank {rank}, step {step}: own gradient {own:.2f}, mean {mean:.2f}, weight {new:.2f}")

dist.destroy_process_group()
