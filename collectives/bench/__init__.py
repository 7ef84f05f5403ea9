"""What a launch, a call, the matrix, MPI and each algorithm cost; the table of nccl-tests."""
