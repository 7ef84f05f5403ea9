"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("counts[1].double()", "len(labels)", ALL_WRONG),
    (".item()", "", "it returned a Tensor, not a float."),
]
