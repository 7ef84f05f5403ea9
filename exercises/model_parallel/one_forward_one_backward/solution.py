def order(rank: int, n: int, m: int) -> list[str]:
    ahead = min(m, n - 1 - rank)
    passes = [f"F{i}" for i in range(ahead)]
    for i in range(m):
        if ahead + i < m:
            passes.append(f"F{ahead + i}")
        passes.append(f"B{i}")
    return passes
