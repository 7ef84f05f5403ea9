"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "only rank 0 calls all_reduce": {
        "kind": "the example",
        "change": (
            "        dist.all_reduce(mean)\n        if dist.get_rank() == 0:\n",
            "        if dist.get_rank() == 0:\n            dist.all_reduce(mean)\n",
        ),
        "says": "it hangs: after 2 s rank 0 is still waiting.",
    },
    "`log` for `if dist.get_rank() == 0: log`": {
        "kind": "the example",
        "change": ("        if dist.get_rank() == 0:\n            log", "        log"),
        "says": "rank 1: the result is wrong.",
    },
    "float32": {
        "kind": "fractions",
        "around": """\
def train(losses):
    return [torch.tensor(loss, dtype=torch.float32).item() for loss in right(losses)]
""",
        "says": "the result is wrong.",
    },
    "the mean of two": {
        "kind": "more than two ranks",
        "change": ("/ dist.get_world_size()", "/ 2"),
        "says": "the result is wrong.",
    },
}
