"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

WRONG = {
    "`by_copy.view(-1, 2).sum(1)` for `(weight * by_copy.view(-1, 2)).sum(1)`": {
        "kind": "the example",
        "change": ("(weight * by_copy.view(-1, 2)).sum(1)", "by_copy.view(-1, 2).sum(1)"),
        "says": "the weights are left out: it is a sum of the answers.",
    },
    "`by_copy.view(-1, 2).mean(1)` for `(weight * by_copy.view(-1, 2)).sum(1)`": {
        "kind": "the example",
        "change": ("(weight * by_copy.view(-1, 2)).sum(1)", "by_copy.view(-1, 2).mean(1)"),
        "says": "the weights are left out: it is a mean of the answers.",
    },
    "`(weight * by_copy.view(-1, 2))[:, 0]` for `(weight * by_copy.view(-1, 2)).sum(1)`": {
        "kind": "the example",
        "change": (".view(-1, 2)).sum(1)", ".view(-1, 2))[:, 0]"),
        "says": "only the first expert of each token counts.",
    },
    "`tokens.repeat(2)` for `tokens.repeat_interleave(2)`": {
        "kind": "the example",
        "change": ("tokens.repeat_interleave(2)", "tokens.repeat(2)"),
        "says": "the result is wrong.",
    },
    "`by_copy.view(2, -1).T` for `by_copy.view(-1, 2)`": {
        "kind": "the example",
        "change": ("by_copy.view(-1, 2)", "by_copy.view(2, -1).T"),
        "says": "the result is wrong.",
    },
    "`return answers` for `by_copy[order] = answers`": {
        "kind": "the example",
        "change": ("by_copy[order] = answers", "by_copy = answers"),
        "says": "the result is wrong.",
    },
    "it keeps the first result": keeps_the_first("through_two(tokens, choice, weight, expert)"),
}
