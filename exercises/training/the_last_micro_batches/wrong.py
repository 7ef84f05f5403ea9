"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "without `or i == last`": {
        "kind": "the example",
        "change": (" or i == last", ""),
        "says": "every rank: the result is wrong.",
    },
    "`i % every` for `(i + 1) % every`": {
        "kind": "the example",
        "change": ("(i + 1) % every", "i % every"),
        "says": "every rank: the result is wrong.",
    },
    "always a last step": {
        "kind": "another length",
        "around": """\
def steps_after(micro_batches, every):
    return sorted({*range(every - 1, micro_batches, every), micro_batches - 1})
""",
        "says": "the result is wrong.",
    },
    "a last step twice": {
        "kind": "an even division",
        "around": """\
def steps_after(micro_batches, every):
    return [*range(every - 1, micro_batches, every), *[micro_batches - 1] * (micro_batches > 0)]
""",
        "says": "the result is wrong.",
    },
}
