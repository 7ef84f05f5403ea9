"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

WRONG = {
    "`in totals` for `in sorted(totals)`": {
        "kind": "the example",
        "change": ("in sorted(totals)", "in totals"),
        "says": "every rank: the result is wrong.",
    },
    "`return sorted(totals.items())` for `return list(totals.items())`": {
        "kind": "the example",
        "change": ("return list(totals.items())", "return sorted(totals.items())"),
        "says": "the result is wrong.",
    },
    "it keeps the first result": keeps_the_first("add_up(numbers)"),
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def add_up(numbers):
    return [(name, number.to(numbers[0][1].dtype)) for name, number in right([(name, number.long()) for name, number in numbers])]
""",
        "says": "the result is wrong.",
    },
}
