"""What each backend needs and can do (claims.toml), and those that we bring: mpi/, by_hand/."""
