"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("received[root]", "received[0]", ALL_WRONG),
    ("src=root", "src=0", "raised ValueError: Argument ``scatter_list`` must"),
]
