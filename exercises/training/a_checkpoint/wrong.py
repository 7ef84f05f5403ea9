"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    '`["momentum"] * 0` for `["momentum"]`': {
        "kind": "the example",
        "change": ('["momentum"]', '["momentum"] * 0'),
        "says": "every rank: the result is wrong.",
    },
    'without `self.generator.set_state(state["generator"])`': {
        "kind": "the example",
        "change": ('        self.generator.set_state(state["generator"])\n', ""),
        "says": "every rank: the result is wrong.",
    },
    'without `self.steps = state["steps"]`': {
        "kind": "the example",
        "change": ('        self.steps = state["steps"]\n', ""),
        "says": "every rank: the result is wrong.",
    },
    "`self.generator.initial_seed()` for `self.generator.get_state()`": {
        "kind": "the example",
        "change": ("self.generator.get_state()", "self.generator.initial_seed()"),
        "says": "raised TypeError",
    },
    "the weights are not kept": {
        "kind": "the example",
        "change": ('state["weights"], state["momentum"]', 'self.weights, state["momentum"]'),
        "says": "the result is wrong.",
    },
}
