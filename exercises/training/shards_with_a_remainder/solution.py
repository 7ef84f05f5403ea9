def my_shard(samples: int, rank: int, n: int) -> list[int]:
    short, longer = divmod(samples, n)
    first = rank * short + min(rank, longer)
    return list(range(first, first + short + (rank < longer)))
