"""What learners really write: changes of the solution, and what they must be told."""

HANGS = "it hangs: after 2 s "
TO_ITSELF = "itself, which a rank cannot do"

WRONG = [
    ("place < distance and place + distance < n", "place < distance", HANGS),
    ("(dist.get_rank() - src) % n", "dist.get_rank()", TO_ITSELF),
    ("distance *= 2", "distance += 1", "it sent 3 messages; 2 are enough."),
]
