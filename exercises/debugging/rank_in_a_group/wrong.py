"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("src=1", "src=0", "raised ValueError: Global rank 0 is not part of group"),
    ("range(1, dist", "range(0, dist", ALL_WRONG),
]
