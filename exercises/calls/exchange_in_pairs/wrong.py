"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."
HANGS = "it hangs: after 2 s "

WRONG = [
    ("return received", "return x", ALL_WRONG),
    ("    dist.recv(received, peer)\n", "", HANGS),
]
