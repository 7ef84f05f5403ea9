"""MPI as a backend of torch.distributed, on mpi4py; torch need not be rebuilt."""
