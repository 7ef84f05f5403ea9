"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("distance *= 2", "distance += 1", "it sent 3 messages; 2 are enough."),
    ("while distance < n", "while distance < n // 2", ALL_WRONG),
]
