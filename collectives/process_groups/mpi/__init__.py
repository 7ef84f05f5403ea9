"""MPI as a backend of torch.distributed, over mpi4py. torch need not be rebuilt."""
