"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    (
        "range(0, len(gradients), every)",
        "range(0, len(gradients) - every + 1, every)",
        ALL_WRONG,
    ),
    (
        "        total = torch.stack(gradients[first : first + every]).sum(0)\n        dist.all_reduce(total)\n",
        "        total = 0\n        for gradient in gradients[first : first + every]:\n"
        "            one = gradient.clone()\n            dist.all_reduce(one)\n            total = total + one\n",
        "every rank: it made 3 calls; 2 are enough.",
    ),
]
