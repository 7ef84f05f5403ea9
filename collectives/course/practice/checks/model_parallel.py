"""Exercises on models that are cut into pieces."""

from collections.abc import Iterator
from functools import partial

import torch

from collectives.course.practice.checks.data import elements, moved
from collectives.course.practice.exercise import MESSAGES, Case, exercise, hints


@exercise(
    "step",
    stars=2,
    lesson="model_parallel/zero",
    uses=("reduce_scatter_tensor", "all_gather_into_tensor"),
)
@hints(
    "Two calls: a reduce_scatter before the update, and an all_gather behind it.",
    "`reduce_scatter_tensor` gives each rank the sum for its slice. The mean is wanted.",
    "`weights.chunk(n)[rank]` is the slice of this rank. Gather all slices into `weights`.",
)
def zero_step(rank: int, n: int) -> Iterator[Case]:
    for call, length in enumerate((1, 2, 2, 0, 1000)):
        # Multiples of n: the mean is a whole number.
        gradients = [n * moved(r, n * length, call).double() for r in range(n)]
        weights = 1000 * torch.arange(1.0, n * length + 1, dtype=torch.float64)
        momentum = 2 * moved(1, n * length, call).double()
        new = momentum / 2 + torch.stack(gradients).sum(0) / n
        mine = slice(rank * length, (rank + 1) * length)
        yield Case(
            f"{elements(length)} on each rank, run {call + 1}",
            (weights.clone(), gradients[rank], momentum[mine].clone()),
            after={0: weights - new, 2: new[mine]},
            calls=2,
        )


@exercise(
    "forward_and_backward", stars=2, lesson="model_parallel/tensor_parallel", uses=("all_reduce",)
)
@hints(
    "In one process, `gradient @ weight.mT` is the gradient of `x`, and `x.mT @ gradient` that "
    "of `weight`.",
    "`x` meets the columns of all ranks: its gradient is a sum over all ranks.",
    "The weight of a rank makes its own columns alone: its gradient needs no call.",
)
def column_parallel(rank: int, n: int) -> Iterator[Case]:
    for call, (rows, width, columns) in enumerate(((1, 2, 1), (1, 2, 1), (3, 2, 4), (2, 1, 1))):
        x = moved(0, rows * width, call).double().view(rows, width)
        # Of all ranks, side by side.
        weight = moved(0, width * n * columns).double().view(width, -1)
        gradient = moved(1, rows * n * columns, call).double().view(rows, -1)
        of_x, of_weight = gradient @ weight.mT, x.mT @ gradient
        mine = slice(rank * columns, (rank + 1) * columns)
        alone = gradient[:, mine] @ weight[:, mine].mT

        def explain(got: tuple, alone: torch.Tensor = alone) -> str | None:
            is_alone = n > 1 and torch.equal(got[1], alone)
            return "the gradient of `x` comes from this rank's columns alone" if is_alone else None

        yield Case(
            f"{elements(rows * width)} of x, run {call + 1}",
            (x, weight[:, mine].clone(), gradient[:, mine].clone()),
            ((x @ weight)[:, mine], of_x, of_weight[:, mine]),
            parts=("result", "gradient of x", "gradient of weight"),
            explain=explain,
            calls=1,
        )


@exercise("order", stars=2, lesson="model_parallel/pipeline")
@hints(
    "A rank first makes as many forward passes as there are ranks behind it, and then the "
    "forward pass whose backward pass comes next.",
    "Then by turns: a forward and a backward pass. At the end only backward passes are left.",
    "With few micro-batches there are not enough for the beginning: `min(m, ...)`.",
)
def one_forward_one_backward(rank: int, n: int) -> Iterator[Case]:
    for m in dict.fromkeys((4, 1, n, 2 * n)):
        # Before forward pass i, so many backward passes are done that few micro-batches are kept.
        places = [((max(i - (n - 1 - rank), 0), 0, i), f"F{i}") for i in range(m)]
        places += [((i, 1, i), f"B{i}") for i in range(m)]
        yield Case(
            f"{m} micro-batch{'es' * (m > 1)}",
            (rank, n, m),
            [text for _, text in sorted(places)],
            explain=partial(_wrong_order, m, min(m, n - rank)),
        )


def _wrong_order(m: int, most: int, passes: list[str]) -> str | None:
    """What is wrong with the passes of a rank that should keep `most` micro-batches."""
    missing = [f"{kind}{i}" for i in range(m) for kind in "FB"]
    kept: list[str] = []
    largest = 0
    for place, text in enumerate(passes):
        if text in passes[:place]:
            return f"it makes {text} twice"
        if text not in missing:
            return f"there is no pass {text!r}: the last ones are F{m - 1} and B{m - 1}"
        missing.remove(text)
        if text.startswith("F"):
            kept.append(text)
        elif f"F{text[1:]}" not in kept:
            return f"{text} comes before F{text[1:]}"
        else:
            kept.remove(f"F{text[1:]}")
        largest = max(largest, len(kept))
        if largest > most:
            return f"after {text} it keeps {largest} micro-batches; the most is {most}"
    if missing:
        return f"{missing[0]} is missing"
    if largest < most:
        return f"it never keeps {most} micro-batches at a time, and waits longer than it must"
    return None


@exercise("ring_attention", stars=3, lesson="model_parallel/long_text", uses=MESSAGES)
@hints(
    "n times: compute with the block that is here. Between them, n - 1 times: send it to the "
    "right neighbour, and receive the next one from the left. `isend` first, then `recv`.",
    "`total = torch.logaddexp(log_sum, new_log_sum)` is the logarithm of the larger sum.",
    "Each result was divided by its own sum. To divide by the larger one, multiply it by "
    "`(its log_sum - total).exp()`; then add the two results.",
)
def ring_attention(rank: int, n: int) -> Iterator[Case]:
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
        yield Case(
            f"{elements(length)}{', large scores' * (scale > 1)}, run {call + 1}",
            (query[mine], key[mine], value[mine]),
            _attention(query, key, value)[mine],
            messages=2 * (n - 1),
            bytes=2 * (n - 1) * length * 8,
            explain=partial(_why, {why: one[mine] for why, one in known.items()}),
        )


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return (query @ key.mT).softmax(-1) @ value


def _why(known: dict[str, torch.Tensor], got: torch.Tensor) -> str | None:
    if not got.isfinite().all():
        return "the result is not finite: `exp` of a large number is infinite"
    same = (why for why, one in known.items() if one.shape == got.shape and one.allclose(got))
    return next(same, None)


class _Expert:
    def __init__(self, rank: int):
        self.number = 1000 * (rank + 1)

    def __repr__(self) -> str:
        return f"adds {self.number}"

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens + self.number


@exercise("through_experts", stars=3, lesson="model_parallel/experts", uses=("all_to_all_single",))
@hints(
    "Three calls: how many tokens come from each rank, the tokens, and their answers.",
    "`torch.bincount(choice, minlength=n)` counts the tokens for each rank, and "
    "`order = choice.argsort()` sorts them by rank: send `tokens[order]`.",
    "On the way back, the sizes of what is sent and of what is received change places.",
    "The answers come in the order in which you sent the tokens: `result[order] = answers`.",
)
def tokens_to_experts(rank: int, n: int) -> Iterator[Case]:
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
        yield Case(
            f"{kind}, run {call + 1}",
            (tokens, choice, _Expert(rank)),
            wanted,
            calls=3,
            explain=partial(_why, known),
        )
