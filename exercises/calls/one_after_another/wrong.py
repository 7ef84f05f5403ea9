"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ("        dist.barrier()\n", "", ALL_WRONG),
    (
        "            spoken = speak()\n        dist.barrier()\n",
        "            dist.barrier()\n            spoken = speak()\n",
        ALL_WRONG,
    ),
]
