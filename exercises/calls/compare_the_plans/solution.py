import hashlib

import torch
import torch.distributed as dist


def same_plan(weights: dict[str, torch.Tensor]) -> bool:
    plan = [(name, tuple(one.shape), str(one.dtype)) for name, one in weights.items()]
    digest = hashlib.sha256(repr(plan).encode()).digest()
    mine = torch.tensor(list(digest), dtype=torch.uint8)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return all(torch.equal(one, mine) for one in found)
