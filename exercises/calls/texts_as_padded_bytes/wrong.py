"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("row[:length]", "row", ALL_WRONG),
    (
        "text.encode()",
        "text.encode('ascii')",
        "raised UnicodeEncodeError: 'ascii' codec can't encode characters in",
    ),
]
