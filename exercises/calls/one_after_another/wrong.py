"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "without `dist.barrier()`": {
        "kind": "the example",
        "change": ("        dist.barrier()\n", ""),
        "says": "it speaks, and no barrier has told it that all before it have spoken",
    },
    "`dist.barrier() spoken = speak()` for `spoken = speak() dist.barrier()`": {
        "kind": "the example",
        "change": (
            "            spoken = speak()\n        dist.barrier()\n",
            "            dist.barrier()\n            spoken = speak()\n",
        ),
        "says": "every rank: the result is wrong.",
    },
    "two barriers are enough": {
        "kind": "more than two ranks",
        "change": (
            "    for rank in range(dist.get_world_size()):\n        if rank == dist.get_rank():\n            spoken = speak()\n        dist.barrier()\n",
            "    if dist.get_rank() == 0:\n        spoken = speak()\n    dist.barrier()\n    if dist.get_rank() > 0:\n        spoken = speak()\n    dist.barrier()\n",
        ),
        "says": "it speaks, and no barrier has told it that all before it have spoken",
    },
    "it returns its place without speaking": {
        "kind": "a call that must be made",
        "around": """\
def in_turn(speak):
    for _ in range(dist.get_world_size()):
        dist.barrier()
    return dist.get_rank() + 1
""",
        "says": "it has not called `speak`.",
    },
    "it sleeps": {
        "kind": "what the text demands",
        "around": """\
def in_turn(speak):
    import time

    time.sleep(dist.get_rank() * 0.4)
    return speak()
""",
        "says": "it speaks, and no barrier has told it that all before it have spoken",
    },
}
