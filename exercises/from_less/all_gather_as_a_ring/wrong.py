"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("range(n - 1)", "range(n)", "it sent 2 messages; 1 is enough."),
    ("rows[(rank - step) % n]", "rows[rank]", "The last right case: 2 ranks, 1000 elements,"),
    ("rows[(rank - step) % n], ", "rows, ", "On gloo this may be a message that has more bytes"),
    (
        "dist.isend(rows[(rank - step) % n], (rank + 1) % n)\n        dist.recv(rows[(rank - step - 1) % n], (rank - 1) % n)\n        work.wait()",
        "dist.isend(rows.clone(), (rank + 1) % n)\n        whole = torch.empty_like(rows)\n        dist.recv(whole, (rank - 1) % n)\n        work.wait()\n        rows[(rank - step - 1) % n] = whole[(rank - step - 1) % n]",
        "it sent 32 bytes; 16 are enough",
    ),
]
