"""A world of ranks: start it or join it, bring the results back in rank order, always end it, and say who failed."""
