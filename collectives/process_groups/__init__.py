"""The two process groups that we bring: by_hand and MPI."""
