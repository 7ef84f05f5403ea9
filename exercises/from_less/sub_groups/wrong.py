"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    (", group=group", "", ALL_WRONG),
    ("total = x.clone()", "total = x", "`x` was changed"),
]
