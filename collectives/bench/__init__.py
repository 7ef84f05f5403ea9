"""What a launch, a call, the matrix and MPI cost, as ratios of timings that were taken in turn in one run."""
