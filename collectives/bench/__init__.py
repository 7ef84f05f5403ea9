"""The table of nccl-tests, for any backend."""
