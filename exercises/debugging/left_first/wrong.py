"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

WRONG = {
    "`return from_right, from_left` for `return from_left, from_right`": {
        "kind": "more than two ranks",
        "change": ("return from_left, from_right", "return from_right, from_left"),
        "says": "the result is wrong.",
    },
    "`dist.isend(x, left)]` for `dist.isend(x, right)]`": {
        "kind": "more than two ranks",
        "change": ("dist.isend(x, right)]", "dist.isend(x, left)]"),
        "says": "it hangs: after 2 s ",
    },
    "it keeps the first result": keeps_the_first("neighbours_values(x)"),
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def neighbours_values(x):
    return tuple(value.to(x.dtype) for value in right(x.long()))
""",
        "says": "the result is wrong.",
    },
}
