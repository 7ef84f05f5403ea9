import torch
import torch.distributed as dist


def gather_texts(text: str) -> list[str]:
    n = dist.get_world_size()
    encoded = torch.tensor(list(text.encode()), dtype=torch.uint8)
    lengths = [torch.empty(1, dtype=torch.int64) for _ in range(n)]
    dist.all_gather(lengths, torch.tensor([len(encoded)]))
    longest = max(length.item() for length in lengths)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(encoded)] = encoded
    rows = [torch.empty_like(padded) for _ in range(n)]
    dist.all_gather(rows, padded)
    return [
        bytes(row[:length].tolist()).decode() for row, length in zip(rows, lengths, strict=True)
    ]
