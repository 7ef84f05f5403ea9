"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "    result[order] = answers\n    return result",
        "    return answers",
        "every rank: the answers are in the order of the experts, not in that of the tokens.",
    ),
    (
        "    result[order] = answers\n    return result",
        "    return answers[order]",
        "`answers[order]` sorts once more: assign to `result[order]`.",
    ),
    ("tokens[order]", "tokens", "every rank: it sends the tokens in their own order"),
    (
        "expert(arrived), sends, receives",
        "expert(arrived), receives, sends",
        "raised RuntimeError: Split sizes doesn't match total dim 0 size",
    ),
    (
        "    dist.all_to_all_single(answers",
        "    if len(arrived):\n        dist.all_to_all_single(answers",
        "all to expert 0, run 2: ",  # It hangs, or the others have ended.
    ),
]
