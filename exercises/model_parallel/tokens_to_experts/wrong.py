"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import in_whole_numbers, keeps_the_first

WRONG = {
    "`return answers` for `result[order] = answers return result`": {
        "kind": "the example",
        "change": ("    result[order] = answers\n    return result", "    return answers"),
        "says": "every rank: the answers are in the order of the experts, not in that of the tokens.",
    },
    "`return answers[order]` for `result[order] = answers return result`": {
        "kind": "the example",
        "change": ("    result[order] = answers\n    return result", "    return answers[order]"),
        "says": "`answers[order]` sorts once more: assign to `result[order]`.",
    },
    "`tokens` for `tokens[order]`": {
        "kind": "the example",
        "change": ("tokens[order]", "tokens"),
        "says": "every rank: it sends the tokens in their own order",
    },
    "`expert(arrived), receives, sends` for `expert(arrived), sends, receives`": {
        "kind": "the example",
        "change": ("expert(arrived), sends, receives", "expert(arrived), receives, sends"),
        "says": "raised RuntimeError: Split sizes doesn't match total dim 0 size",
    },
    "an expert without tokens makes no call": {
        "kind": "another length",
        "change": (
            "    dist.all_to_all_single(answers",
            "    if len(arrived):\n        dist.all_to_all_single(answers",
        ),
        "says": "all to expert 0, run 2: ",
    },
    "it computes with whole numbers": in_whole_numbers("through_experts(tokens, choice, expert)"),
    "it keeps the first result": keeps_the_first("through_experts(tokens, choice, expert)"),
}
