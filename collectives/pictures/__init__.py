"""Figures from the tensors and calls of a run: where every number went, and when.

results = launch(step, record="tensors")
for figure in pictures.draw(results.calls, "step"):
    picture.save(figure, "step.svg")
"""

from collectives.pictures.illustration import draw

__all__ = ["draw"]
