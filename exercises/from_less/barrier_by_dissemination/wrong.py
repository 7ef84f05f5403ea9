"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("distance *= 2", "distance += 1", "it sent 3 messages; 2 are enough."),
    ("while distance < n", "while distance < n // 2", "every rank: `marks` is as it was: "),
]
