"""A world of ranks: start or join it, collect its results, always end it, name who failed."""
