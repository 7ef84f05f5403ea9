"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator
from functools import partial

import torch
from known_faults import why

from collectives.course.practice.data import elements
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "n times: compute with the block that is here. Between them, n - 1 times: send it to the "
    "right neighbour, and receive the next one from the left. `isend` first, then `recv`.",
    "`total = torch.logaddexp(log_sum, new_log_sum)` is the logarithm of the larger sum.",
    "Each result was divided by its own sum. To divide by the larger one, multiply it by "
    "`(its log_sum - total).exp()`; then add the two results.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, (length, scale) in enumerate(((1, 1), (1, 1), (2, 1), (1, 1000), (50, 1))):
        numbers = torch.arange(n * length, dtype=torch.float64).view(-1, 1)
        # For the query 1, the key log 3 has 3 times the weight of the key 0.
        query, key, value = scale * (1 + numbers % 4), (1 + 2 * numbers).log(), 10 + 10 * numbers
        parts = [
            _attention(query, *both) for both in zip(key.chunk(n), value.chunk(n), strict=True)
        ]
        known = {
            "the result comes from this rank's keys alone": parts[rank],
            "it adds the results of the blocks without weights": torch.stack(parts).sum(0),
            "it takes the mean of the blocks: their weights differ": torch.stack(parts).mean(0),
        }
        mine = slice(rank * length, (rank + 1) * length)
        own_twice = torch.cat([key, key[mine]]), torch.cat([value, value[mine]])
        known["this rank's own block counts twice"] = _attention(query, *own_twice)
        known["`exp` of a large log_sum is infinite: subtract first"] = torch.zeros_like(query)
        yield ExerciseCase(
            f"{elements(length)}{', large scores' * (scale > 1)}, run {call + 1}",
            (query[mine], key[mine], value[mine]),
            _attention(query, key, value)[mine],
            messages=2 * (n - 1),
            least_messages=n - 1,
            bytes=2 * (n - 1) * length * 8,
            peers=[(rank + 1) % n, (rank - 1) % n],
            held=max(2, n - 2) * 2 * length * 8,
            says={
                **dict.fromkeys(
                    ("messages", "least_messages", "bytes", "peers"),
                    "the blocks of keys and values travel around the ring",
                ),
                "held": "no rank may hold all of them",
            },
            explain=partial(why, {why: one[mine] for why, one in known.items()}),
        )


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return (query @ key.mT).softmax(-1) @ value
