"""Where the ranks of a job stand that runs already: read from outside, by py-spy."""
