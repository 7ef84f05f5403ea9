"""What learners really write: changes of the solution, and what they must be told."""

HANGS = "it hangs: after 2 s "
TO_ITSELF = "itself, which a rank cannot do"

WRONG = [
    ("work = dist.isend(x, (rank + 1) % n)", "dist.send(x, (rank + 1) % n)", HANGS),
    ("return received", "return x.copy_(received)", "`x` was changed"),
    ("    if n == 1:\n        return x.clone()\n", "", TO_ITSELF),
    (
        "return received",
        "return received.float()",
        "the result is of type torch.float32, not torch.int64",
    ),
    ("    work.wait()\n    return received\n", "    work.wait()\n", "it returned nothing"),
    (
        "    work.wait()\n",
        "",
        "it does not wait for its isend in line 10: call `wait()` of the Work",
    ),
]
