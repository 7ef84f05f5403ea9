import torch
import torch.distributed as dist


def on_all_ranks(numbers: torch.Tensor | None, root: int) -> torch.Tensor:
    is_root = dist.get_rank() == root
    x = torch.empty(1)
    dist.scatter(x, list(numbers.split(1)) if is_root else None, src=root)
    squares = [torch.empty(1) for _ in numbers] if is_root else None
    dist.gather(x.square(), squares, dst=root)
    return torch.cat(squares) if is_root else torch.tensor([])
