"""What learners really write: changes of the solution, and what they must be told."""

HANGS = "it hangs: after 2 s "
TO_ITSELF = "itself, which a rank cannot do"

WRONG = [
    ("received[left]", "received[right]", "The last right case: 2 ranks, 1000 elements,"),
    ("range(1, n)", "range(n)", TO_ITSELF),
    ("(rank - distance) % n", "(rank + distance) % n", HANGS),
]
