"""From the tensors and calls of a run to a figure: where every number went, and when."""
