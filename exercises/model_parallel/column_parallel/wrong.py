"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "without `dist.all_reduce(of_x)`": {
        "kind": "the example",
        "change": ("    dist.all_reduce(of_x)\n", ""),
        "says": "every rank: the gradient of `x` comes from this rank's columns alone.",
    },
    "it averages the gradient of x": {
        "kind": "the example",
        "change": ("of_x, x.mT @ gradient", "of_x / dist.get_world_size(), x.mT @ gradient"),
        "says": "every rank: `gradient of x` is wrong.",
    },
    "whole numbers": {
        "kind": "fractions",
        "change": ("result = x @ weight", "result = (x.long() @ weight.long()).double()"),
        "says": "`result` is wrong.",
    },
    "it keeps the first gradient": {
        "kind": "a second call",
        "around": """\
KEPT = []


def forward_and_backward(x, weight, gradient):
    result, of_x, of_weight = right(x, weight, gradient)
    KEPT.append(of_x)
    return result, KEPT[0].clone(), of_weight
""",
        "says": "`gradient of x` is wrong.",
    },
    "one row": {
        "kind": "another length",
        "change": ("x.mT @ gradient", "x[:1].mT @ gradient[:1]"),
        "says": "`gradient of weight` is wrong.",
    },
}
