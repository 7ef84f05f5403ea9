"""Figures from the tensors and calls of a run: where every number went, and when."""
