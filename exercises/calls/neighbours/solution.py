def neighbours(rank: int, n: int) -> tuple[int, int]:
    return (rank - 1) % n, (rank + 1) % n
