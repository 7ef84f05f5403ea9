"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("in sorted(totals)", "in totals", ALL_WRONG),
    ("return list(totals.items())", "return sorted(totals.items())", "the result is wrong."),
]
