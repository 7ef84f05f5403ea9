def steps_after(micro_batches: int, every: int) -> list[int]:
    last = micro_batches - 1
    return [i for i in range(micro_batches) if (i + 1) % every == 0 or i == last]
