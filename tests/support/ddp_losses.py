"""The same training over gloo and over the backend of the world."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def losses(rank, world_size, device, wrap, steps):
    """Some steps on gloo and on the world's backend, in the same ranks: a list of losses for each."""
    found = []
    for group in (dist.new_group(backend="gloo"), dist.group.WORLD):
        torch.manual_seed(1)
        layers = [torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)]
        model = wrap(torch.nn.Sequential(*layers), group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(10 + rank)
        found.append([])
        for _ in range(steps):
            x = torch.randn(16, 64, generator=generator)
            y = torch.randint(0, 10, (16,), generator=generator)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found[-1].append(loss.item())
    return found


def with_ddp(model, group):
    return DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.005)
