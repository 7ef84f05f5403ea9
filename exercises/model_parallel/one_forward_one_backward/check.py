"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator
from functools import partial

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "A rank first makes as many forward passes as there are ranks behind it, and then the "
    "forward pass whose backward pass comes next.",
    "Then by turns: a forward and a backward pass. At the end only backward passes are left.",
    "If there are too few micro-batches for the beginning, it is shorter: `min(m, ...)`.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for m in dict.fromkeys((4, 1, n, 2 * n)):
        # Before forward pass i, so many backward passes are done that few micro-batches are kept.
        places = [((max(i - (n - 1 - rank), 0), 0, i), f"F{i}") for i in range(m)]
        places += [((i, 1, i), f"B{i}") for i in range(m)]
        yield ExerciseCase(
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
