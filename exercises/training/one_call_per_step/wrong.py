"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`range(0, len(gradients) - every + 1, every)` for `range(0, len(gradients), every)`": {
        "kind": "the example",
        "change": (
            "range(0, len(gradients), every)",
            "range(0, len(gradients) - every + 1, every)",
        ),
        "says": "every rank: the result is wrong.",
    },
    "a call for each micro-batch": {
        "kind": "the example",
        "change": (
            "        total = torch.stack(gradients[first : first + every]).sum(0)\n        dist.all_reduce(total)\n",
            "        total = 0\n        for gradient in gradients[first : first + every]:\n            one = gradient.clone()\n            dist.all_reduce(one)\n            total = total + one\n",
        ),
        "says": "every rank: it made 3 calls; 2 are enough.",
    },
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def sums_of_steps(gradients, every):
    return [total.to(gradients[0].dtype) for total in right([one.long() for one in gradients], every)]
""",
        "says": "the result is wrong.",
    },
}
