"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    (" or i == last", "", ALL_WRONG),
    ("(i + 1) % every", "i % every", ALL_WRONG),
]
