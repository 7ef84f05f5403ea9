"""What learners really write: changes of the solution, and what they must be told."""

ALL_WRONG = "every rank: the result is wrong."

WRONG = [
    ('["momentum"]', '["momentum"] * 0', ALL_WRONG),
    ('        self.generator.set_state(state["generator"])\n', "", ALL_WRONG),
    ('        self.steps = state["steps"]\n', "", ALL_WRONG),
    ("self.generator.get_state()", "self.generator.initial_seed()", "raised TypeError"),
]
