"""Which call works on which backend, measured cell by cell, and compared with what is claimed."""

# The functional collectives import the compiler, which takes longer than ten cells: the fork server
# does it once, for all ranks.
PRELOADED = ("torch._dynamo", "torch.distributed.nn", "collectives.semantics.probe")
