"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator
from functools import partial

import torch
from known_faults import why

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import ExerciseCase, hints


class _Expert:
    def __init__(self, rank: int):
        self.number = 1000 * (rank + 1)

    def __repr__(self) -> str:
        return f"adds {self.number}"

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens + self.number


@hints(
    "Three calls: how many tokens come from each rank, the tokens, and their answers.",
    "`torch.bincount(choice, minlength=n)` counts the tokens for each rank, and "
    "`order = choice.argsort()` sorts them by rank: send `tokens[order]`.",
    "On the way back, you send what you received, so the two lists of sizes change places.",
    "The answers come in the order in which you sent the tokens: `result[order] = answers`.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, kind in enumerate(
        ("a few tokens", "all to expert 0", "rank 0 has none", "1000 tokens")
    ):
        lengths = {"rank 0 has none": [*range(n)], "1000 tokens": [1000] * n}.get(
            kind, range(3, n + 3)
        )
        tokens, mine = moved(rank, lengths[rank], call), torch.arange(lengths[rank])
        # First the others by turns, and in the end expert 0.
        choice = (mine % max(n - 1, 1) + 1).clamp(max=n - 1)
        choice[-1:] = 0
        if kind == "all to expert 0":
            choice[:] = 0
        wanted = tokens + 1000 * (choice + 1)
        order = choice.argsort(stable=True)
        by_expert, unsorted = wanted[order], torch.empty_like(tokens)
        unsorted[order] = tokens + 1000 * (choice[order] + 1)
        known = {
            "the answers are in the order of the experts, not in that of the tokens": by_expert,
            "`answers[order]` sorts once more: assign to `result[order]`": by_expert[order],
            "it sends the tokens in their own order: the first ones go to rank 0": unsorted,
            "this rank's expert answers all of its tokens": tokens + 1000 * (rank + 1),
        }
        yield ExerciseCase(
            f"{kind}, run {call + 1}",
            (tokens, choice, _Expert(rank)),
            wanted,
            explain=partial(why, known),
        )
