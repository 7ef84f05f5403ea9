"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import keeps_the_first

WRONG = {
    "without `/ tensor`": {
        "kind": "the example",
        "change": (" / tensor", ""),
        "says": "every rank: it counts `shared` once for each rank of a tensor group.",
    },
    "without `dist.all_reduce(squares)`": {
        "kind": "the example",
        "change": ("    dist.all_reduce(squares)\n", ""),
        "says": "the result is wrong.",
    },
    "norms for squares": {
        "kind": "the example",
        "change": (
            "cut.square().sum() + shared.square().sum() / tensor",
            "cut.norm() + shared.norm() / tensor",
        ),
        "says": "every rank: the result is wrong.",
    },
    "`/ dist.get_world_size()` for `/ tensor`": {
        "kind": "another grid",
        "change": ("/ tensor", "/ dist.get_world_size()"),
        "says": "every rank: the result is wrong.",
    },
    "it keeps the first result": keeps_the_first("norm(cut, shared, tensor)"),
}
