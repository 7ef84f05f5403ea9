"""What each backend is, needs and can do: one record each, and claims.toml."""
