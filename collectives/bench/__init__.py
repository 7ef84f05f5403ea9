"""What a launch, a call, the matrix and MPI cost: ratios of timings taken in turn in one run."""
