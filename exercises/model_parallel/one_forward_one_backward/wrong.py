"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    ("n - 1 - rank", "n - rank", "rank 0: after F2 it keeps 3 micro-batches; the most is 2."),
    ("n - 1 - rank", "rank", "rank 0: it never keeps 2 micro-batches at a time, and waits"),
    (
        "min(m, n - 1 - rank)",
        "n - 1 - rank",
        "3 ranks, 1 micro-batch: rank 0: there is no pass 'F1': the last ones are F0 and B0.",
    ),
    ("range(m):", "range(m - ahead):", "rank 0: B3 is missing."),
    ('f"B{i}"', 'f"B{m - 1 - i}"', "every rank: B3 comes before F3."),
    ('f"F{ahead + i}"', 'f"F{i}"', "rank 0: it makes F0 twice."),
]
