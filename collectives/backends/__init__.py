"""What each backend needs and can do (claims.toml), and the backends that we bring: mpi/."""
