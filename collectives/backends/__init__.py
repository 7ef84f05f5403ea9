"""What each backend is, needs and can do (claims.toml), and the backends that this package brings."""
