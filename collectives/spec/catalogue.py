"""The reductions, and the bus-bandwidth factor of each collective."""

# The reductions of dist.ReduceOp, in the order of the grid.
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")

# The factor turns algorithm bandwidth (bytes of the whole array / time) into bus bandwidth for n
# ranks, as nccl-tests' PERFORMANCE.md defines it. None: no data moves.
COLLECTIVES: dict[str, str | None] = {
    "send_recv": "1",
    "isend_irecv": "1",
    "broadcast": "1",
    "all_reduce": "2 * (n - 1) / n",
    "reduce": "1",
    "all_gather": "(n - 1) / n",
    "gather": "(n - 1) / n",
    "scatter": "(n - 1) / n",
    "reduce_scatter": "(n - 1) / n",
    "all_to_all": "(n - 1) / n",
    "barrier": None,
    "new_group": None,
}
